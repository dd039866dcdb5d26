"""Finds where an own model's forward pass depends on its tokens (docs/models.md).

Ranks have different sequences. FSDP gathers a block's weights by a collective when the forward pass
reaches the block, and reduces the gradients in the backward pass. If two ranks reached different
blocks, they would train on a mixture of both blocks' weights; if the sizes are equal, no error
would occur.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn

from trainer.errors import LaunchError
from trainer.models.base import DataDependence
from trainer.models.own.child_process import in_child
from trainer.models.own.own_model import OwnModel, blocks_of
from trainer.models.own.watched_buffers import WatchedBuffers
from trainer.models.stateless_rng import Noise
from trainyard.spec.job import JobSpec

logger = logging.getLogger("trainer")

ATTRIBUTE = "data_dependence"
"""Attribute of the user's module that holds a value of `DataDependence`."""
Order = tuple[str, ...]
"""Names of the blocks in the user's module, in the order in which forward runs them."""


@dataclass(frozen=True)
class Trial:
    """The result of a forward pass on the meta device, where tensors have no values."""

    orders: Mapping[bool, Order] = field(default_factory=dict)
    """Order of the blocks in training and in evaluation; empty if no pass succeeded."""
    used: frozenset[str] | None = None
    """Names of the user's parameters that the backward pass reached; None if unknown."""
    changed: frozenset[str] | None = None
    """Names of checkpoint buffers that the forward pass changed in training; None if unknown."""
    reason: str | None = None
    """Reason why the forward pass failed; otherwise None."""
    reads_values: bool = False
    """Whether the forward pass failed because it reads a value, on which its control flow may
    depend.
    """


def stated_dependence(model: OwnModel, spec: JobSpec) -> DataDependence | None:
    """Return the dependence that the user's class states; None if it states none.

    Raises:
        LaunchError: the stated value is no `DataDependence`; or it is not `nowhere`, and the job
            has pipeline stages, whose micro-batches overlap.
    """
    given = getattr(model.net, ATTRIBUTE, None)
    if given is None:
        return None
    legal = [each.value for each in DataDependence]
    if given not in legal:
        raise LaunchError(
            f"own model: {ATTRIBUTE}={given!r} of the module; legal: {', '.join(legal)}"
        )
    if spec.parallelism.pp > 1 and given != DataDependence.NOWHERE:
        raise LaunchError(
            f"parallelism.pp={spec.parallelism.pp}, but {ATTRIBUTE}={given!r} of the own model's "
            f"module; legal: pp=1, or {ATTRIBUTE} = 'nowhere' if forward takes the same "
            "course for all tokens"
        )
    return DataDependence(given)


def find_data_dependence(model: OwnModel, spec: JobSpec) -> Trial:
    """Set a model's `data_dependence`; return the trial with the order of its blocks, if known.

    This is a collective. If the module states nothing, rank 0 runs a forward pass on the meta
    device. Code that reads a value fails there, and is assumed to depend on the value. If the
    forward pass fails for another reason, the first real forward pass determines the order.

    Raises:
        LaunchError: as for `stated_dependence`; or the ranks have built different parameters.
    """
    named = [f"{name} {list(p.shape)} {p.requires_grad}" for name, p in model.named_parameters()]
    if not is_alike(named):
        raise LaunchError(
            "own model: ranks have built other parameters, or in another order, such as that "
            "of a set; legal: the same ones in the same order on every rank"
        )
    if (stated := stated_dependence(model, spec)) is not None:
        model.data_dependence = stated
        return Trial()
    results = [_trial(model, spec) if dist.get_rank() == 0 else Trial()]
    dist.broadcast_object_list(results, src=0, device=torch.device("cpu"))
    (trial,) = results
    if trial.reads_values:
        model.data_dependence = DataDependence.ANYWHERE
        logger.warning(
            "own model: forward reads values of its tokens (%s), so it may run other blocks "
            "for others: ranks keep all its weights from forward to backward. Where all blocks "
            "run for all tokens, %s = 'in_blocks' in the module's class saves this memory",
            *(trial.reason, ATTRIBUTE),
        )
    elif trial.reason is not None:
        logger.warning("own model: forward fails on the meta device: %s", trial.reason)
    return trial


def _trial(model: OwnModel, spec: JobSpec) -> Trial:
    """Run the forward pass of new instances in a child process, because it may cache meta tensors.

    The child lacks the other threads of this process, so it may hang; then the result is unknown.
    """

    def run() -> dict[str, Any]:
        try:
            evaluation, training = (_run(model, spec, training=each) for each in (False, True))
            return {**training, "evaluation": evaluation["order"]}
        except Exception as error:  # noqa: BLE001 -- user code may raise anything
            words, _, _ = f"{type(error).__name__}: {error}".partition("\n")
            return {"reason": words[:300], "reads_values": reads_values(error)}

    found = in_child(run)
    if found is None:
        return Trial(reason="the process that ran it has ended without a result")
    if "reason" in found:
        return Trial(reason=found["reason"], reads_values=found["reads_values"])
    return Trial(
        orders={True: tuple(found["order"]), False: tuple(found["evaluation"])},
        used=None if found["used"] is None else frozenset(found["used"]),
        changed=frozenset(found["changed"]),
    )


def reads_values(error: Exception) -> bool:
    """Return whether an error on the meta device was caused by a missing value."""
    text = str(error)
    if "Meta tensors" in text:  # no kernel: an operator of torch with a data-dependent shape
        return text.startswith("aten::")
    return any(part in text for part in ("meta tensor", "register_meta", "meta device type"))


def _run(model: OwnModel, spec: JobSpec, *, training: bool) -> dict[str, Any]:
    """Run a new instance on the meta device; in training, include the backward pass.

    Returns:
        Returns `order`, the blocks in the order of their run; `changed`, the buffers that the
        forward pass changed; and `used`, the parameters that the backward pass reached, or None if
        it did not run.
    """
    order: list[str] = []
    with torch.device("meta"), torch.set_grad_enabled(training):
        net = model.build().train(training)
        model.cast(net)
        for name, block in _names(net, blocks_of(net, model.block_classes)).items():
            block.register_forward_pre_hook(partial(_append, order, name))
        tokens_BS = torch.zeros(1, spec.training.seq_len, dtype=torch.int64)
        options: dict[str, Any] = {}
        if training and "noise" in inspect.signature(net.forward).parameters:
            keys_B = torch.zeros(1, dtype=torch.int64)
            options["noise"] = Noise(keys_B, torch.arange(spec.training.seq_len))
        buffers = WatchedBuffers(net)
        before = buffers.versions()
        result = net(tokens_BS, **options)
        ran = list(order)  # the backward pass may run blocks again
        found = {"order": ran, "changed": buffers.changed(before), "used": None}
        if training:
            with suppress(Exception):  # user code may raise anything
                result.sum().backward()
                found["used"] = [n for n, p in net.named_parameters() if p.grad is not None]
        return found


def _append(order: list[str], name: str, *_: object) -> None:
    order.append(name)


def _names(net: nn.Module, blocks: Iterable[nn.Module]) -> dict[str, nn.Module]:
    wanted = set(blocks)
    return {name: module for name, module in net.named_modules() if module in wanted}


class BlockOrder:
    """Checks, before a rank gathers a block's weights, that this block is the next one.

    Without a known order, the first forward pass determines the order, which must then be the same
    on all ranks.
    """

    def __init__(self, model: OwnModel, spec: JobSpec, orders: Mapping[bool, Order]) -> None:
        """Watch a model, or one of its stages, to which FSDP has been applied."""
        self._is_whole = spec.parallelism.pp == 1
        blocks = _names(model.net, model.layers.values())
        self._orders = {
            training: tuple(name for name in order if name in blocks)
            for training, order in orders.items()
        }
        self._run: list[str] | None = None
        """Blocks run in the current forward pass; None in the backward pass, which may run blocks
        again.
        """
        for name, block in blocks.items():
            # Registered as the first hook, because FSDP's own hook gathers the weights.
            block.register_forward_pre_hook(partial(self._before_block, model, name), prepend=True)
        model.register_forward_pre_hook(self._begin, prepend=True)
        model.register_forward_hook(self._end)

    def _begin(self, *_: object) -> None:
        self._run = []

    def _before_block(self, model: nn.Module, name: str, *_: object) -> None:
        if self._run is None:
            return
        order, place = self._orders.get(model.training), len(self._run)
        self._run.append(name)
        if order is not None and order[place : place + 1] != (name,):
            raise LaunchError(_refusal(f"it runs {name} {_instead(order, place)}"))

    def _end(self, model: nn.Module, *_: object) -> None:
        assert self._run is not None, "forward has begun"
        run, self._run = tuple(self._run), None
        order = self._orders.setdefault(model.training, run)
        if order is run and self._is_whole and not is_alike(run):
            raise LaunchError(_refusal("ranks run them in different orders"))
        if len(run) < len(order):
            raise LaunchError(_refusal(f"it ends {_instead(order, len(run))}"))


def is_alike(words: Iterable[str]) -> bool:
    """Return whether all ranks have the same words in the same order; this is a collective."""
    checksum = crc32("\n".join(words).encode())
    ends = torch.tensor([checksum, -checksum], device="cpu")
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return bool(ends.sum() == 0)


def _instead(order: Order, place: int) -> str:
    usual = f"where it usually runs {order[place]}" if place < len(order) else "as one block more"
    return f"as block {place + 1}, {usual}"


def _refusal(what: str) -> str:
    """Return the error for a forward pass whose order of blocks differs from other ranks'."""
    return (
        f"own model: forward runs blocks of model.block_classes in an order that varies: {what}"
        f"; legal: {ATTRIBUTE} = 'anywhere' in the module's class, with which ranks gather all "
        "weights at once, or the same blocks in the same order for all tokens"
    )
