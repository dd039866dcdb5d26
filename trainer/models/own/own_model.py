"""Own models: modules from `model.factory` or `model.hugging_face` that map tokens to logits.

Shapes: B sequences, S tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.data.batches import NO_LABEL
from trainer.data.files.places import resolve
from trainer.errors import LaunchError
from trainer.models.attention import Positions
from trainer.models.base import Model, outermost
from trainer.models.hub.causal_model import CausalModel, build_hub_model
from trainer.models.own.parallel_plans import TENSOR, pieces, tensor_plan
from trainer.models.own.parameter_rules import check_parameters
from trainer.models.own.watched_buffers import Versions, WatchedBuffers
from trainer.models.stateless_rng import Noise
from trainer.models.ties import Ties
from trainyard.spec.job import JobSpec

STD = 0.02
RUNS_AGAIN = ("full", "selective")
"""Modes of activation checkpointing in which the backward pass runs a block's code again."""


class OwnModel(Model):
    """Adapts a user's module to `Model`: adds loss, blocks, and initial values for buffers.

    In a pipeline stage, the modules of other stages are None.

    Args:
        spec: has the factory, its arguments, vocabulary, sequence length, classes of the blocks,
            and the axes that need plans.
        roots: path of each root, by name, for `model.code` and `model.hugging_face`.

    Raises:
        LaunchError: the factory cannot be imported, fails, or returns no module; a parameter cannot
            be divided over ranks; a class in `model.block_classes` has no block; or the plan for a
            used axis is missing or does not fit.
        DataError: `model.code` or `model.hugging_face` cannot be read on this node.
    """

    def __init__(self, spec: JobSpec, roots: Mapping[str, str]) -> None:
        super().__init__()
        self._spec, self._roots = spec, roots
        self.build = _builder(spec, roots)
        """Function that builds the user's module on torch's default device."""
        self.used_parameters: frozenset[str] | None = None
        """Names of parameters that the backward pass reaches for all tokens; None if unknown."""
        self.changed_buffers: frozenset[str] | None = None
        """Names of the buffers that the forward pass changes in training; None if unknown."""
        self._stream_dtype: torch.dtype = getattr(torch, spec.training.param_dtype)
        self.net = self.build()
        check_parameters(self.net)
        self._ties = Ties(self.net)
        self.positions = Positions(2, spec.training.seq_len, theta=10_000.0)
        self.tok_embeddings, self.norm, self.output = None, None, None
        self.loss = LogitsLoss()
        options = inspect.signature(self.net.forward).parameters
        self._takes_noise, self._takes_segments = "noise" in options, "segments" in options
        self._set_layers(blocks_of(self.net, self.block_classes))
        axes = spec.parallelism
        self.tensor_plan = tensor_plan(self.net, spec) if axes.tp > 1 else {}
        """ParallelStyle of each split module, by name in `net`; other modules are replicated."""
        self._pieces = pieces(self.net, spec) if axes.pp > 1 else {}
        self._ends = True
        for name in self.tensor_plan:
            if any(cut.startswith(f"{name}.") for cut in self._named(self._pieces)):
                raise LaunchError(
                    f"own model: {TENSOR} names {name!r}, which the pipeline plan cuts apart; "
                    "legal: modules within its pieces, or parallelism.pp=1"
                )

    def forward(
        self,
        x: Tensor,
        labels_BS: Tensor | None = None,
        *,
        keys_B: Tensor | None = None,
        segments_BS: Tensor | None = None,
    ) -> Tensor:
        """Return logits [B, S, V]; with labels, return the sum of the tokens' losses instead.

        `x` is token ids [B, S]; after the first pipeline stage, it is the residual stream [B, S,
        D]. A stage before the last one returns the stream.

        Raises:
            LaunchError: the module's result has a wrong type, shape or dtype, or a buffer is
                changed inside a block that the backward pass runs again.
            ValueError: a sequence is longer than `seq_len`.
        """
        options: dict[str, Any] = {}
        if segments_BS is not None:
            assert self._takes_segments, "only hub models have document masks (a rule of the spec)"
            options["segments"] = segments_BS
        _, _, stream_S = self.positions(x.shape[1])
        if self._takes_noise and keys_B is not None:
            options["noise"] = Noise(keys_B, stream_S)
        before = self._versions_of_buffers()
        result = self.net(x, **options)
        self._refuse_changed_buffers(before)
        if not self._ends:
            width, dtype = self._spec.architecture.dim, self._stream_dtype
            if self._shape(result) != (len(x), len(stream_S), width) or result.dtype != dtype:
                raise LaunchError(
                    "own model: between stages forward must return the stream [B, S, D] = "
                    f"{[len(x), len(stream_S), width]} (D is model.dim) of {dtype}, "
                    f"got {_described(result)}"
                )
            return result
        tokens = x.shape[1] if x.ndim == 2 else self.positions.attended.numel()
        wanted = (len(x), tokens, self._spec.architecture.vocab_size)
        if self._shape(result) != wanted:
            raise LaunchError(
                f"own model: forward must return logits [B, S, V] = {list(wanted)}, "
                f"got {_described(result)}"
            )
        if labels_BS is None:
            return result.full_tensor() if isinstance(result, DTensor) else result
        loss: Tensor = self.loss(result, labels_BS)
        return loss

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes of blocks; a hub model defines its own."""
        if isinstance(self.net, CausalModel):
            return self.net.block_classes
        return self._spec.model.block_classes

    def keep(self, names: Collection[str]) -> None:
        """Replace the modules of all pieces except the named ones by None, in place."""
        held = self._named(names)
        for name in self._named(self._pieces) - held:
            parent, _, child = name.rpartition(".")
            setattr(self.net.get_submodule(parent), child, None)
        there = set(self.net.modules())
        self._set_layers([block for block in self.layers.values() if block in there])
        self._ends = "output" in names

    def part(self, names: Collection[str]) -> Self:
        """Return a model of the named pieces; it shares them with this model.

        Modules without parameters belong to no piece; every part has them.
        """
        with torch.device("meta"):
            part = type(self)(self._spec, self._roots)
        part.positions, part.loss = self.positions, self.loss
        _share(part.net, self.net, cut=self._named(self._pieces), held=self._named(names))
        there = set(part.net.modules())
        part._set_layers([block for block in self.layers.values() if block in there])
        part._ends = "output" in names
        return part

    def try_in_parts(self, parts: Sequence[Collection[str]]) -> None:
        """Run parts in order on the meta device; each gets the output of the previous part.

        Raises:
            LaunchError: a part fails or returns an invalid output.
        """
        with torch.device("meta"):
            whole = type(self)(self._spec, self._roots)
            x = torch.zeros(1, self._spec.training.seq_len, dtype=torch.int64)
            self.cast(whole)
            for index, names in enumerate(parts):
                try:
                    x = whole.part(names)(x)
                except LaunchError as error:
                    raise LaunchError(f"stage {index} of {len(parts)}: {error}") from error
                except Exception as error:  # user code may raise anything
                    held = ", ".join(sorted(self._named(names)))
                    raise LaunchError(
                        f"own model: stage {index} of {len(parts)}, where all but {held} is "
                        "None, does not run on the meta device: "
                        f"{type(error).__name__}: {error}"
                    ) from error

    def cast(self, module: nn.Module) -> None:
        """Cast the parameters of a module to `param_dtype`, as FSDP does before forward."""
        for parameter in module.parameters():
            parameter.data = parameter.data.to(self._stream_dtype)

    def _named(self, names: Collection[str]) -> set[str]:
        """Return the names in `net` of the modules in some pieces."""
        return {module for name in names for module in self._pieces[name]}

    def _set_layers(self, blocks: Sequence[nn.Module]) -> None:
        # Bypasses registration, because blocks already have their names in `net`, and a second name
        # would appear in the state dict.
        object.__setattr__(self, "layers", nn.ModuleDict({str(i): b for i, b in enumerate(blocks)}))
        inside = {module for block in blocks for module in block.modules()}
        self._buffers_of_blocks = WatchedBuffers(self.net, within=inside)

    def _versions_of_buffers(self) -> Versions:
        """Return the blocks' buffers and their change counts, if backward runs blocks again.

        Otherwise return nothing, because only a block that runs again would change a buffer twice.
        """
        mode = self._spec.activation_checkpoint.mode
        if mode not in RUNS_AGAIN or not torch.is_grad_enabled():
            return {}
        return self._buffers_of_blocks.versions()

    def _refuse_changed_buffers(self, before: Versions) -> None:
        if changed := self._buffers_of_blocks.changed(before):
            raise LaunchError(
                f"activation_checkpoint.mode={self._spec.activation_checkpoint.mode!r} runs blocks "
                f"again in backward, and forward changes the buffer {changed[0]} of one; legal: "
                "none or memory_budget, or a buffer outside of model.block_classes"
            )

    @staticmethod
    def _shape(result: object) -> tuple[int, ...] | None:
        return tuple(result.shape) if isinstance(result, Tensor) else None

    @property
    def tied(self) -> bool:
        """False, because FSDP's root unit always holds all parameters outside of blocks."""
        return False

    def keep_ties(self) -> None:
        """Tie the names of each tied tensor in `net` again; errors as in `Ties.restore`."""
        self._ties.restore(self.net)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        # `to_empty` and `to` call this and replace tensors name by name, which breaks ties. FSDP's
        # override calls this method before it records the new tensors.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.keep_ties()
        return self

    def initial_std(self, name: str) -> float:
        """Return 0.02 for every matrix, or the value that a hub model defines."""
        if isinstance(self.net, CausalModel):
            return self.net.initial_value(name.removeprefix("net.")).std
        return STD

    def initial_constant(self, name: str, parameter: nn.Parameter) -> float | None:
        """Return the value of a vector, or the constant that a hub model defines."""
        if isinstance(self.net, CausalModel):
            return self.net.initial_value(name.removeprefix("net.")).constant
        return super().initial_constant(name, parameter)

    def initial_weights(self, seed: int) -> dict[str, Tensor] | None:
        """Return all weights that the module's own `init_weights(seed)` sets, if it has one."""
        if not hasattr(self.net, "init_weights"):
            return None
        whole = self.build()
        whole.init_weights(seed)
        return {f"net.{name}": parameter.detach() for name, parameter in whole.named_parameters()}

    @torch.no_grad()
    def reset_buffers(self) -> None:
        """Set the buffers to the values that the module's constructor sets."""
        self.positions.reset()
        buffers = dict(self.net.named_buffers())
        if buffers:
            # With all names, because the first name of a shared buffer may be in another stage.
            fresh = dict(self.build().named_buffers(remove_duplicate=False))
            for name, buffer in buffers.items():
                local = buffer.to_local() if isinstance(buffer, DTensor) else buffer
                local.copy_(fresh[name])


class LogitsLoss(nn.Module):
    """The summed cross entropy of all tokens, float32 in nats; labels of -100 do not count.

    This is a module without weights, so that loss parallelism can replace it.
    """

    def forward(self, logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
        """Return the loss for logits that are not split.

        Raises:
            LaunchError: the logits are split over ranks.
        """
        if isinstance(logits_BSV, DTensor):
            raise LaunchError(
                "parallelism.loss_parallel=false, but forward of the own model returned split "
                f"logits ({logits_BSV.placements}); legal: a {TENSOR} that gathers them, or "
                "loss_parallel=true"
            )
        return F.cross_entropy(
            logits_BSV.flatten(0, 1).float(),
            labels_BS.flatten(),
            ignore_index=NO_LABEL,
            reduction="sum",
        )


def _share(
    part: nn.Module, whole: nn.Module, *, cut: set[str], held: set[str], prefix: str = ""
) -> None:
    """Copy `whole`'s children to `part`; children in `cut` but not in `held` become None."""
    # The same dict object, so that buffers allocated later in one module also exist in the other.
    part._buffers = whole._buffers
    for name, child in whole._modules.items():
        path = prefix + name
        if path in cut:
            part._modules[name] = child if path in held else None
        elif child is not None and any(other.startswith(f"{path}.") for other in cut):
            own = part._modules[name]
            assert own is not None, "a newly built module has all children"
            _share(own, child, cut=cut, held=held, prefix=f"{path}.")
        else:
            part._modules[name] = child


def _described(result: object) -> str:
    if isinstance(result, Tensor):
        return f"{list(result.shape)} of {result.dtype}"
    return type(result).__name__


def _builder(spec: JobSpec, roots: Mapping[str, str]) -> Callable[[], Any]:
    """Return a function that builds the module on torch's default device."""
    section = spec.model
    if section.hugging_face is not None:
        return partial(build_hub_model, spec, roots)
    assert section.factory is not None, "the spec names no factory"
    factory = _imported(section.factory, _code(section.code, roots))
    arguments = {
        "vocab_size": spec.architecture.vocab_size,
        "seq_len": spec.training.seq_len,
        **section.arguments,
    }

    def build() -> Any:
        try:
            module = factory(**arguments)
        except Exception as error:
            given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            raise LaunchError(
                f"model.factory={section.factory!r} failed on ({given}): "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(module, nn.Module):
            raise LaunchError(
                f"model.factory={section.factory!r} returned {type(module).__name__}, "
                "but a torch.nn.Module is needed"
            )
        return module

    return build


def _code(place: str | None, roots: Mapping[str, str]) -> Path | None:
    return None if place is None else resolve(place, f"model.code={place!r}", roots)[1]


def _imported(name: str, code: Path | None) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if code is not None and str(code) not in sys.path:
        sys.path.insert(0, str(code))
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # user code may raise any error on import
        where = f" in {code}" if code else ""
        raise LaunchError(
            f"model.factory={name!r} cannot be imported{where}: {type(error).__name__}: {error}"
        ) from error
    return factory


def blocks_of(net: nn.Module, classes: tuple[str, ...]) -> list[nn.Module]:
    """Return the outermost modules of the given classes, in order; refuse a class without one."""
    blocks = outermost(net, classes)
    missing = set(classes) - {type(block).__name__ for block in blocks}
    if missing:
        there = sorted({type(module).__name__ for module in net.modules() if module is not net})
        raise LaunchError(
            f"model.block_classes: the model has no {', '.join(sorted(missing))}; "
            f"legal: {', '.join(there)}"
        )
    return blocks
