"""Layouts: the parallel axes of one attempt, whose product is the world size."""

from __future__ import annotations

from typing import Self

from specs.base import Ranks, SpecModel


class Layout(SpecModel):
    """The resolved parallel axes; slowest-varying first in rank order: pp, dp, cp, tp."""

    dp_replicate: Ranks = 1
    """Replicas of the sharded model."""
    dp_shard: Ranks = 1
    """Ranks that share one replica's weights."""
    cp: Ranks = 1
    """Context parallel ranks."""
    tp: Ranks = 1
    """Tensor parallel ranks."""
    pp: Ranks = 1
    """Pipeline parallel stages."""

    @property
    def dp(self) -> int:
        """Data-parallel ranks: each works on sequences of its own."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def slots_in_words(self) -> str:
        """Slots that it takes, such as `1 slot` or `4 slots`."""
        return f"{self.world_size} slot{'' if self.world_size == 1 else 's'}"

    def __str__(self) -> str:
        """Name the axes above one, as in `FSDP 4`, `HSDP 2x2`, `TP 2` or `DDP 2 x TP 2`."""
        if self.dp_replicate > 1 and self.dp_shard > 1:
            parts = [f"HSDP {self.dp_replicate}x{self.dp_shard}"]
        else:
            parts = _above_one(DDP=self.dp_replicate, FSDP=self.dp_shard)
        parts += _above_one(CP=self.cp, TP=self.tp, PP=self.pp)
        return " x ".join(parts) or "1 rank"

    @classmethod
    def fill(
        cls, *, world_size: int, dp_replicate: int, dp_shard: int, cp: int, tp: int, pp: int
    ) -> Self:
        """Return the layout of `world_size` ranks; `dp_shard=-1` takes what the others leave.

        Raises:
            ValueError: the axes do not multiply to `world_size`; the text names what would.
        """
        others = dp_replicate * cp * tp * pp
        if dp_shard == -1:
            if world_size % others:
                raise ValueError(
                    f"dp_replicate x cp x tp x pp = {others} does not divide "
                    f"world_size={world_size}"
                )
            dp_shard = world_size // others
        if dp_shard < 1:
            raise ValueError(f"dp_shard={dp_shard} must be positive, or -1 to fill the slots")
        if others * dp_shard != world_size:
            raise ValueError(
                f"dp_replicate x dp_shard x cp x tp x pp = {others * dp_shard}, "
                f"but world_size={world_size}"
            )
        return cls(dp_replicate=dp_replicate, dp_shard=dp_shard, cp=cp, tp=tp, pp=pp)


def _above_one(**sizes: int) -> list[str]:
    return [f"{name} {size}" for name, size in sizes.items() if size > 1]
