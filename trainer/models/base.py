"""The interface between models and the trainer, for the model families and own models."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Self

from torch import Tensor, nn

from trainer.models.attention import Positions
from trainer.models.head import Head


class DataDependence(StrEnum):
    """Where the control flow of the forward pass may depend on its tokens, as in expert choice."""

    NOWHERE = "nowhere"
    """All tokens use the same parameters in the same order."""
    IN_BLOCKS = "in_blocks"
    """All tokens use the same blocks in the same order, but may use different parameters within a
    block.
    """
    ANYWHERE = "anywhere"
    """Tokens may also use other blocks."""


class Model(nn.Module):
    """Maps tokens to logits, or to the loss of the logits.

    A model is built on the meta device, then parallelized, then allocated and initialized.
    """

    data_dependence = DataDependence.NOWHERE
    """Where ranks may use different parameters because their tokens differ."""
    positions: Positions
    """Tokens of a sequence that this process handles."""
    layers: nn.ModuleDict
    """Blocks of the model; each is a unit of FSDP, recomputation and compilation."""
    tok_embeddings: nn.Embedding | None
    """Embedding, which is an FSDP unit; None if it is absent or part of another module."""
    norm: nn.RMSNorm | None
    """Final norm, which is in the same FSDP unit as `output`."""
    output: Head | None
    """Head of the model; None if it is absent or part of another module."""

    @property
    def tied(self) -> bool:
        """Whether the head uses the embedding's weight; FSDP's root unit then holds both."""
        raise NotImplementedError

    def keep_ties(self) -> None:
        """Let all names of each tied tensor refer to one tensor again, after a replacement."""

    def keep(self, names: Collection[str]) -> None:
        """Remove all modules except the named ones, in place; parameter names do not change.

        For every model, the names are those of `trainyard.training.pipeline_stages.module_names`.
        """
        raise NotImplementedError

    def part(self, names: Collection[str]) -> Self:
        """Return a model of the named modules; it shares them with this model.

        Without `tok_embeddings`, the input of the part is the residual stream [B, S, D]; without
        `output`, its result is the residual stream.
        """
        raise NotImplementedError

    def initial_std(self, name: str) -> float:
        """Return the standard deviation for a matrix's initial values."""
        raise NotImplementedError

    def initial_constant(self, name: str, parameter: nn.Parameter) -> float | None:
        """Return the initial value of all elements of a parameter; None if it is drawn."""
        if parameter.ndim >= 2:
            return None
        return 0.0 if name.endswith("bias") else 1.0

    def initial_weights(self, _seed: int) -> dict[str, Tensor] | None:
        """Return all initial weights, whole and by name, if the model creates them itself.

        If this returns None, `init_weights` draws the weights.
        """
        return None

    def reset_buffers(self) -> None:
        """Set buffers, which `to_empty` leaves undefined, to their values before training."""
        self.positions.reset()


def outermost(net: nn.Module, classes: Collection[str]) -> list[nn.Module]:
    """Return the outermost modules inside of `net` that have one of the classes, in order."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in net.modules():
        if module is not net and type(module).__name__ in classes and module not in inside:
            found.append(module)
            inside |= set(module.modules())
    return found
