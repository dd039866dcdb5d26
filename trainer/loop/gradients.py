"""The global gradient norm, and clipping by it, under any layout of the parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

# A mesh, and those of its dimensions over which a gradient is sharded; none for a plain tensor.
Sharding = tuple[DeviceMesh | None, tuple[int, ...]]


@torch.no_grad()
def clip_grad_norm(
    parameters: Iterable[Tensor], max_norm: float, *, stages: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale all gradients so that their global L2 norm is at most `max_norm`; return the norm.

    The norm is that before clipping, a scalar on the parameters' device, equal on every rank; the
    host waits for nothing. An infinite `max_norm` scales nothing. All ranks call it together.
    Under pipeline parallelism `stages` are the ranks that hold the other parameters.

    torch's own function does one all-reduce per parameter and refuses parameters of different
    meshes; this one does one per kind of sharding.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    shards: dict[Sharding, list[Tensor]] = {}
    for gradient in gradients:
        shards.setdefault(_sharding(gradient), []).append(_local(gradient))
    square = torch.stack([_square_sum(*kind, shards[kind]) for kind in shards]).sum()
    if stages is not None:
        dist.all_reduce(square, group=stages)
    norm = square.sqrt()
    if math.isfinite(max_norm):
        scale = (max_norm / (norm + 1e-6)).clamp_(max=1.0)
        torch._foreach_mul_([_local(gradient) for gradient in gradients], scale)
    return norm


def _sharding(gradient: Tensor) -> Sharding:
    if not isinstance(gradient, DTensor):
        return None, ()
    assert not any(p.is_partial() for p in gradient.placements), "a gradient was not reduced"
    dims = (dim for dim, p in enumerate(gradient.placements) if not p.is_replicate())
    return gradient.device_mesh, tuple(dims)


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _square_sum(mesh: DeviceMesh | None, dims: tuple[int, ...], shards: list[Tensor]) -> Tensor:
    """Return the sum of squares over all ranks that share these gradients."""
    norms = torch._foreach_norm(shards, 2, torch.float32)  # gradients may be bfloat16
    total = torch.stack(norms).square_().sum()
    for dim in dims:
        assert mesh is not None
        dist.all_reduce(total, group=mesh.get_group(dim))
    return total
