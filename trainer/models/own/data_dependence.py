"""Where the course of an own model's forward depends on its tokens (docs/models.md).

Ranks have other sequences. FSDP gathers the weights of a block by a collective when forward meets
the block, and reduces the gradients that backward made. Where two ranks meet different blocks,
they would train on a mixture of the weights of both, without an error if these are equally large.

Shapes: B sequences, S tokens.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn

from trainer.errors import LaunchError
from trainer.models.base import DataDependence
from trainer.models.own.own_model import OwnModel, blocks_of
from trainer.models.stateless_rng import Noise
from trainyard.spec.job import JobSpec

logger = logging.getLogger("trainer")

ATTRIBUTE = "data_dependence"
"""Attribute of the user's module that names a `DataDependence`."""
Order = tuple[str, ...]
"""Names of the blocks, within the user's module, as forward runs them."""
Orders = dict[bool, Order]
"""The order in training, and that in evaluation; absent where it is not known yet."""


def find_data_dependence(model: OwnModel, spec: JobSpec) -> Orders:
    """Set `data_dependence` of a model, and return the orders of its blocks.

    The user's module can name it. Otherwise forward runs on the meta device, whose tensors have no
    values: what reads one fails there, and may decide by it.

    Raises:
        LaunchError: the module names another value than those of `DataDependence`.
    """
    given = getattr(model.net, ATTRIBUTE, None)
    if given is not None:
        legal = [each.value for each in DataDependence]
        if given not in legal:
            raise LaunchError(
                f"model.factory: {ATTRIBUTE}={given!r} of the module; legal: {', '.join(legal)}"
            )
        model.data_dependence = DataDependence(given)
        return {}
    try:
        return {training: _order(model, spec, training=training) for training in (True, False)}
    except Exception as error:  # noqa: BLE001 -- user code may raise anything
        model.data_dependence = DataDependence.ANYWHERE
        logger.warning(
            "model.factory: forward does not run without the values of its tokens (%s: %s), so it "
            "may run other blocks for others: ranks keep all its weights from forward to backward. "
            "Where all blocks run for all tokens, %s = 'in_blocks' in the module's class saves "
            "this memory",
            type(error).__name__,
            str(error).split("\n", 1)[0][:300],
            ATTRIBUTE,
        )
        return {}


def _order(model: OwnModel, spec: JobSpec, *, training: bool) -> Order:
    """Return the order in which forward of a new instance runs its blocks on the meta device."""
    order: list[str] = []
    with torch.device("meta"), torch.set_grad_enabled(training):
        net = model.build().train(training)
        model.cast(net)
        for name, block in _names(net, blocks_of(net, spec.model.block_classes)).items():
            block.register_forward_pre_hook(partial(_append, order, name))
        tokens_BS = torch.zeros(1, spec.training.seq_len, dtype=torch.int64)
        options: dict[str, Any] = {}
        if training and "noise" in inspect.signature(net.forward).parameters:
            keys_B = torch.zeros(1, dtype=torch.int64)
            options["noise"] = Noise(keys_B, torch.arange(spec.training.seq_len))
        net(tokens_BS, **options)
    return tuple(order)


def _append(order: list[str], name: str, *_: object) -> None:
    order.append(name)


def _names(net: nn.Module, blocks: Iterable[nn.Module]) -> dict[str, nn.Module]:
    wanted = set(blocks)
    return {name: module for name, module in net.named_modules() if module in wanted}


class BlockOrder:
    """Compares, before a rank gathers the weights of a block, whether this block is next.

    Without a known order that of the first forward counts, if it is the same on all ranks.
    """

    def __init__(self, model: OwnModel, spec: JobSpec, orders: Mapping[bool, Order]) -> None:
        """Watch a model, or a stage of one, after FSDP has been applied."""
        self._is_whole = spec.parallelism.pp == 1
        blocks = _names(model.net, model.layers.values())
        self._orders = {
            training: tuple(name for name in order if name in blocks)
            for training, order in orders.items()
        }
        self._run: list[str] = []
        for name, block in blocks.items():
            # First of all: FSDP's own hook gathers the weights.
            block.register_forward_pre_hook(partial(self._before_block, model, name), prepend=True)
        model.register_forward_pre_hook(self._begin, prepend=True)
        model.register_forward_hook(self._end)

    def _begin(self, *_: object) -> None:
        self._run = []

    def _before_block(self, model: nn.Module, name: str, *_: object) -> None:
        order, place = self._orders.get(model.training), len(self._run)
        self._run.append(name)
        if order is not None and order[place : place + 1] != (name,):
            raise LaunchError(_refusal(f"it runs {name} {_instead(order, place)}"))

    def _end(self, model: nn.Module, *_: object) -> None:
        order = self._orders.get(model.training)
        if order is None:
            order = self._orders[model.training] = tuple(self._run)
            if self._is_whole and not _is_alike(order):
                raise LaunchError(_refusal("ranks run them in different orders"))
        if len(self._run) < len(order):
            raise LaunchError(_refusal(f"it ends {_instead(order, len(self._run))}"))


def _is_alike(order: Order) -> bool:
    """Return whether all ranks have the same order; a collective."""
    checksum = crc32(repr(order).encode())
    ends = torch.tensor([checksum, -checksum], device="cpu")
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return bool(ends.sum() == 0)


def _instead(order: Order, place: int) -> str:
    usual = f"where it usually runs {order[place]}" if place < len(order) else "as one block more"
    return f"as block {place + 1}, {usual}"


def _refusal(what: str) -> str:
    """Return the error of a forward that runs its blocks in another order than other ranks."""
    return (
        f"model.factory: forward runs blocks of model.block_classes in an order that varies: {what}"
        f"; legal: {ATTRIBUTE} = 'anywhere' in the module's class, with which ranks gather all "
        "weights at once, or the same blocks in the same order for all tokens"
    )
