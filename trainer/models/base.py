"""What the trainer asks of a model, whether it is of a family or somebody's own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from torch import Tensor, nn

from trainer.models.attention import Positions
from trainer.models.head import Head


class Model(nn.Module):
    """Maps tokens to logits or to their loss; built without memory, then spread, then filled."""

    positions: Positions
    """Which tokens of a sequence this process works on."""
    layers: nn.ModuleDict
    """The blocks: what is sharded, computed again and compiled one by one."""
    tok_embeddings: nn.Embedding | None
    """What is used first, where it is sharded by itself."""
    norm: nn.RMSNorm | None
    """What is used before the head, and sharded with it."""
    output: Head | None
    """What is used last, where it is sharded by itself."""

    @property
    def tied(self) -> bool:
        """Whether the head uses the weight of the embedding: the root then shards both."""
        raise NotImplementedError

    def keep_ties(self) -> None:
        """Restore tensors that the model holds under several names, after one was replaced."""

    def keep(self, names: Collection[str]) -> None:
        """Take out, in place, all modules but the named ones; names of parameters stay.

        Names are those of `trainyard.training.pipeline_stages.module_names`, for every model alike.
        """
        raise NotImplementedError

    def part(self, names: Collection[str]) -> Self:
        """Return a model of the named modules, which it shares with this one.

        Without `tok_embeddings` it is given the residual stream [B, S, D] in place of tokens, and
        without `output` it returns it.
        """
        raise NotImplementedError

    def initial_std(self, name: str) -> float:
        """Return the standard deviation with which a matrix is drawn."""
        raise NotImplementedError

    def initial_weights(self, _seed: int) -> dict[str, Tensor] | None:
        """Return whole initial weights by name, for a model that has a way of its own to make them.

        None has them drawn by name.
        """
        return None

    def reset_buffers(self) -> None:
        """Give buffers, which `to_empty` left without values, what they hold before training."""
        self.positions.reset()
