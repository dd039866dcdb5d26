"""Layouts: sizes of the parallel axes of one attempt. Their product is the world size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Self

from pydantic import Field, create_model

from trainyard.axes import AXES, MESH_AXES
from trainyard.base.model_base import Ranks, SpecModel
from trainyard.base.problems import SpecError, around, multiples, nearest, refusal

if TYPE_CHECKING:

    class _Sizes(SpecModel):
        """The axes as fields for type checkers; `Layout.size` returns the size of an axis by
        name."""

        dp_replicate: Ranks = 1
        dp_shard: Ranks = 1
        cp: Ranks = 1
        tp: Ranks = 1
        pp: Ranks = 1

else:
    # A layout that was stored before an axis existed lacks this axis, so the default is 1.
    _Sizes = create_model(
        "_Sizes",
        __base__=SpecModel,
        **{axis.name: (Ranks, Field(1, description=axis.help)) for axis in AXES},
    )


_MESH_SIZES = attrgetter(*(axis.name for axis in MESH_AXES))


class Layout(_Sizes):
    """Sizes of the parallel axes (`trainyard.axes`); ranks are ordered by `MESH_AXES`."""

    def size(self, axis: str) -> int:
        """Return the size of an axis."""
        size: int = getattr(self, axis)
        return size

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis, in the order of `AXES`."""
        return {axis.name: self.size(axis.name) for axis in AXES}

    @property
    def dp(self) -> int:
        """Number of data-parallel ranks, which train on different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(_MESH_SIZES(self))

    @property
    def node_units(self) -> tuple[int, ...]:
        """Sizes of groups of adjacent ranks that should share a node if the node has enough slots.

        The sizes are `cp x tp`, then `tp`; a size of 1 is omitted. Both axes communicate in every
        block of the model, and vary fastest in the order of ranks.
        """
        return tuple(dict.fromkeys(n for n in (self.cp * self.tp, self.tp) if n > 1))

    @property
    def slots_in_words(self) -> str:
        """Number of slots in words, such as `1 slot` or `4 slots`."""
        return f"{self.world_size} slot{'' if self.world_size == 1 else 's'}"

    def __str__(self) -> str:
        """Return the axes larger than 1, as in `FSDP 4`, `HSDP 2x2`, `TP 2` or `DDP 2 x TP 2`."""
        parts = [
            f"{axis.label} {self.size(axis.name)}" for axis in AXES if self.size(axis.name) > 1
        ]
        if self.dp_replicate > 1 and self.dp_shard > 1:
            parts[:2] = [f"HSDP {self.dp_replicate}x{self.dp_shard}"]
        return " x ".join(parts) or "1 rank"

    @classmethod
    def fill(cls, *, world_size: int, **sizes: int) -> Self:
        """Return the layout of `world_size` ranks.

        Args:
            world_size: number of ranks.
            sizes: size of each axis; 1 if absent. `dp_shard=-1` takes the remaining factor.

        Raises:
            SpecError: the product of the axes differs from `world_size`. The error gives the field,
                its value and the nearest legal values.
        """
        factors = {axis.name: sizes.get(axis.name, 1) for axis in AXES if axis.multiplies_world}
        dp_shard = factors.pop("dp_shard")
        others = math.prod(factors.values())
        if dp_shard == -1:
            if world_size % others:
                raise _uneven(factors, world_size)
            dp_shard = world_size // others
        if dp_shard < 1:
            raise refusal(
                "/parallelism/dp_shard",
                f"dp_shard={dp_shard} must be positive, or -1 to fill the slots; "
                "nearest legal: -1, 1",
            )
        if others * dp_shard != world_size:
            raise _other_product(others, dp_shard, world_size)
        return cls(**{**sizes, "dp_shard": dp_shard})


def data_parallel_layouts(sizes: Mapping[str, int], world_size: int) -> list[Layout]:
    """Return the layouts of `world_size` ranks that change only the `dp` axes.

    The order is: the layout with as many shards as in `sizes`, the layout with as many replicas as
    in `sizes`, and the layout with one replica over all ranks. The list is empty if the product of
    the other axes does not divide `world_size`.

    Args:
        sizes: size of each axis; `dp_shard` may be -1.
        world_size: number of ranks.
    """
    replicas, shards = sizes["dp_replicate"], sizes["dp_shard"]
    others = math.prod(
        sizes[axis.name] for axis in MESH_AXES if axis.name not in {"dp_replicate", "dp_shard"}
    )
    dp, rest = divmod(world_size, others)
    if rest:
        return []
    kept = [dp // shards] if shards > 0 and dp % shards == 0 else []
    kept += [replicas] if dp % replicas == 0 else []
    return [
        Layout(**{**sizes, "dp_replicate": each, "dp_shard": dp // each})
        for each in dict.fromkeys([*kept, 1])
    ]


def _uneven(axes: Mapping[str, int], world_size: int) -> SpecError:
    """Return an error for the largest axis that has a legal size, given the other axes.

    If no axis has a legal size, return an error for the number of slots.
    """
    product = math.prod(axes.values())
    words = f"{' x '.join(axes)} = {product}"
    slots = around(world_size, multiples(product, world_size))
    for field, size in sorted(axes.items(), key=lambda axis: -axis[1]):
        room, rest = divmod(world_size, product // size)
        if not rest:
            legal = [n for n in range(1, room + 1) if room % n == 0]
            return refusal(
                f"/parallelism/{field}",
                f"{field}={size} makes {words}, which does not divide world_size={world_size}; "
                f"{nearest(size, legal)}, or as world_size: {slots}",
            )
    return refusal(
        "/resources/world_size",
        f"world_size={world_size} is no multiple of {words}; nearest legal: {slots}",
    )


def _other_product(others: int, dp_shard: int, world_size: int) -> SpecError:
    product = others * dp_shard
    names = " x ".join(axis.name for axis in AXES if axis.multiplies_world)
    words = f"{names} = {product}"
    if world_size % others:
        return refusal(
            "/resources/world_size",
            f"world_size={world_size}, but {words}; legal: {product}, or other axes",
        )
    return refusal(
        "/parallelism/dp_shard",
        f"dp_shard={dp_shard} makes {words}, but world_size={world_size}; "
        f"legal: {world_size // others}, -1, or world_size={product}",
    )
