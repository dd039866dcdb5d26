"""The interface of models to the trainer, for the families and own models."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Self

from torch import Tensor, nn

from trainer.models.attention import Positions
from trainer.models.head import Head


class DataDependence(StrEnum):
    """Where the course of forward may depend on its tokens, as in the choice of an expert."""

    NOWHERE = "nowhere"
    """The same parameters in the same order for all tokens."""
    IN_BLOCKS = "in_blocks"
    """The same blocks in the same order; other parameters within a block."""
    ANYWHERE = "anywhere"
    """Also other blocks."""


class Model(nn.Module):
    """Maps tokens to logits or to their loss.

    Built on the meta device, then parallelized, then allocated and initialized.
    """

    data_dependence = DataDependence.NOWHERE
    """Where ranks may use other parameters, because their tokens differ."""
    positions: Positions
    """The tokens of a sequence that this process handles."""
    layers: nn.ModuleDict
    """The blocks: the units of FSDP, recomputation and compilation."""
    tok_embeddings: nn.Embedding | None
    """The embedding, an FSDP unit of its own; None if absent or part of another module."""
    norm: nn.RMSNorm | None
    """The final norm, in one FSDP unit with `output`."""
    output: Head | None
    """The head; None if absent or part of another module."""

    @property
    def tied(self) -> bool:
        """Whether the head uses the weight of the embedding: FSDP's root unit then holds both."""
        raise NotImplementedError

    def keep_ties(self) -> None:
        """Restore the identity of tensors with several names after some were replaced."""

    def keep(self, names: Collection[str]) -> None:
        """Remove, in place, all modules except the named ones; parameter names do not change.

        Names are those of `trainyard.training.pipeline_stages.module_names` for every model.
        """
        raise NotImplementedError

    def part(self, names: Collection[str]) -> Self:
        """Return a model of the named modules, shared with this one.

        Without `tok_embeddings` its input is the residual stream [B, S, D]; without `output`, so is
        its result.
        """
        raise NotImplementedError

    def initial_std(self, name: str) -> float:
        """Return the standard deviation of a matrix's initial values."""
        raise NotImplementedError

    def initial_weights(self, _seed: int) -> dict[str, Tensor] | None:
        """Return the whole initial weights by name if the model creates them itself.

        None: `init_weights` draws them.
        """
        return None

    def reset_buffers(self) -> None:
        """Set buffers, which `to_empty` leaves undefined, to their values before training."""
        self.positions.reset()
