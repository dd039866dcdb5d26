"""Layouts: the parallel axes of one attempt, whose product is the world size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

from trainyard.base.models import Ranks, SpecModel
from trainyard.base.problems import Problem, SpecError, around, multiples, nearest


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
            SpecError: the axes do not multiply to `world_size`; field, value and nearest legal
                values are named.
        """
        axes = {"dp_replicate": dp_replicate, "cp": cp, "tp": tp, "pp": pp}
        others = math.prod(axes.values())
        if dp_shard == -1:
            if world_size % others:
                raise _uneven(axes, world_size)
            dp_shard = world_size // others
        if dp_shard < 1:
            raise _refusal(
                "/parallelism/dp_shard",
                f"dp_shard={dp_shard} must be positive, or -1 to fill the slots; "
                "nearest legal: -1, 1",
            )
        if others * dp_shard != world_size:
            raise _other_product(others, dp_shard, world_size)
        return cls(dp_replicate=dp_replicate, dp_shard=dp_shard, cp=cp, tp=tp, pp=pp)


def _uneven(axes: Mapping[str, int], world_size: int) -> SpecError:
    """Blame the largest axis that could have another size, else the number of slots."""
    product = math.prod(axes.values())
    words = f"{' x '.join(axes)} = {product}"
    slots = around(world_size, multiples(product, world_size))
    for field, size in sorted(axes.items(), key=lambda axis: -axis[1]):
        room, rest = divmod(world_size, product // size)
        if not rest:
            legal = [n for n in range(1, room + 1) if room % n == 0]
            return _refusal(
                f"/parallelism/{field}",
                f"{field}={size} makes {words}, which does not divide world_size={world_size}; "
                f"{nearest(size, legal)}, or as world_size: {slots}",
            )
    return _refusal(
        "/resources/world_size",
        f"world_size={world_size} is no multiple of {words}; nearest legal: {slots}",
    )


def _other_product(others: int, dp_shard: int, world_size: int) -> SpecError:
    product = others * dp_shard
    words = f"dp_replicate x dp_shard x cp x tp x pp = {product}"
    if world_size % others:
        return _refusal(
            "/resources/world_size",
            f"world_size={world_size}, but {words}; legal: {product}, or other axes",
        )
    return _refusal(
        "/parallelism/dp_shard",
        f"dp_shard={dp_shard} makes {words}, but world_size={world_size}; "
        f"legal: {world_size // others}, -1, or world_size={product}",
    )


def _refusal(pointer: str, detail: str) -> SpecError:
    return SpecError([Problem(pointer=pointer, detail=detail)])


def _above_one(**sizes: int) -> list[str]:
    return [f"{name} {size}" for name, size in sizes.items() if size > 1]
