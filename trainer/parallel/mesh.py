"""The device mesh of all ranks, and the coordinates of a rank in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainyard.axes import MESH_AXES
from trainyard.spec.layout import Layout

FSDP_AXIS = "fsdp"
"""Axis that combines dp_shard and cp, because weights are sharded over both."""


def build_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks with the axes in use, slowest-varying axis first.

    `dp_shard` is always present, even with size 1. This is a collective and requires a process
    group.
    """
    axes = {axis.name: layout.size(axis.name) for axis in MESH_AXES}
    used = {name: size for name, size in axes.items() if size > 1 or name == "dp_shard"}
    return init_device_mesh(device_type, tuple(used.values()), mesh_dim_names=tuple(used))


def fsdp_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return FSDP's mesh for sharding weights; `dp_replicate`, if in use, is its first axis.

    Context-parallel ranks hold the same weights and sum their gradients, so weights are sharded
    over these ranks too.
    """
    names = mesh.mesh_dim_names or ()
    sharding = mesh["dp_shard"]
    if "cp" in names:
        sharding = mesh["dp_shard", "cp"]._flatten(FSDP_AXIS)
    if "dp_replicate" not in names:
        return sharding
    # Slicing by names fails here, because torch does not slice flattened axes together with other
    # axes.
    return DeviceMesh._concatenate([mesh["dp_replicate"], sharding])


def set_timeouts(mesh: DeviceMesh, timeout: timedelta) -> None:
    """Set the timeout for all collectives of training, in the world group and on every axis.

    torch creates the groups of a mesh with its default timeouts, 10 minutes on CUDA and 30 minutes
    on a CPU, and ignores the timeout of the world group.
    """
    groups = mesh.get_all_groups() + fsdp_mesh(mesh).get_all_groups()
    for group in (dist.group.WORLD, *groups):
        _set_pg_timeout(timeout, group)


@dataclass(frozen=True)
class MeshCoordinates:
    """A rank's coordinates on the axes, from 0; `dp` combines `dp_replicate` and `dp_shard`."""

    pp: int
    dp: int
    cp: int
    tp: int

    @classmethod
    def of(cls, rank: int, layout: Layout) -> MeshCoordinates:
        """Return the coordinates of a global rank; `pp` varies slowest, then dp, cp and tp."""
        rest, tp = divmod(rank, layout.tp)
        rest, cp = divmod(rest, layout.cp)
        pp, dp = divmod(rest, layout.dp)
        return cls(pp=pp, dp=dp, cp=cp, tp=tp)


def ranks_of_replicas(rank: int, layout: Layout) -> list[int]:
    """Return the ranks with the same shards as `rank`, including `rank`: one per replica."""
    stride = layout.dp_shard * layout.cp * layout.tp
    replica = MeshCoordinates.of(rank, layout).dp // layout.dp_shard
    return [rank + (other - replica) * stride for other in range(layout.dp_replicate)]
