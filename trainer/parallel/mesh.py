"""The mesh of all ranks, and where a rank stands in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainyard.axes import MESH_AXES
from trainyard.spec.layout import Layout

FSDP_AXIS = "fsdp"
"""dp_shard and cp together: weights are sharded over both."""


def build_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks, slowest-varying axis first, with the axes that are in use.

    `dp_shard` is always one of them. All ranks call it together, with a process group in place.
    """
    axes = {axis.name: layout.size(axis.name) for axis in MESH_AXES}
    used = {name: size for name, size in axes.items() if size > 1 or name == "dp_shard"}
    return init_device_mesh(device_type, tuple(used.values()), mesh_dim_names=tuple(used))


def fsdp_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh over which weights are sharded; replicas, if any, are its first axis.

    Context-parallel ranks hold the same weights and add up their gradients, so they share them.
    """
    names = mesh.mesh_dim_names or ()
    sharding = mesh["dp_shard"]
    if "cp" in names:
        sharding = mesh["dp_shard", "cp"]._flatten(FSDP_AXIS)
    if "dp_replicate" not in names:
        return sharding
    # Not taken by its names, which torch gives up for axes that were flattened.
    return DeviceMesh._concatenate([mesh["dp_replicate"], sharding])


def set_timeouts(mesh: DeviceMesh, timeout: timedelta) -> None:
    """Have collectives of training, over all ranks or those of an axis, wait so long from now on.

    torch gives the groups of a mesh its defaults, 10 minutes on CUDA and 30 on a CPU, whatever the
    group of all ranks was given.
    """
    groups = mesh.get_all_groups() + fsdp_mesh(mesh).get_all_groups()
    for group in (dist.group.WORLD, *groups):
        _set_pg_timeout(timeout, group)


@dataclass(frozen=True)
class Place:
    """Where a rank stands on each axis, counted from 0."""

    pp: int
    dp: int
    cp: int
    tp: int

    @classmethod
    def of(cls, rank: int, layout: Layout) -> Place:
        """Return the place of a global rank; rank order is pp, dp, cp, tp."""
        rest, tp = divmod(rank, layout.tp)
        rest, cp = divmod(rest, layout.cp)
        pp, dp = divmod(rest, layout.dp)
        return cls(pp=pp, dp=dp, cp=cp, tp=tp)


def ranks_of_replicas(rank: int, layout: Layout) -> list[int]:
    """Return the ranks that hold the shards of a rank, one of each replica, itself included."""
    apart = layout.dp_shard * layout.cp * layout.tp
    replica = Place.of(rank, layout).dp // layout.dp_shard
    return [rank + (other - replica) * apart for other in range(layout.dp_replicate)]
