"""Initial weights: bit-equal on every layout.

Each parameter is cut into blocks of rows, and each block has its own generator, seeded by (seed,
name, block). A rank draws only the blocks of its shard; the result equals a slice of the whole
parameter.

The generator is numpy's: torch's CPU generator uses only 32 bits of its seed, so that two blocks of
a large model would be equal, and its values depend on the vector width of the CPU.
"""

from __future__ import annotations

from hashlib import blake2b
from operator import add

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainer.models.base import Model

BLOCK_ELEMENTS = 1 << 22


@torch.no_grad()
def init_weights(model: Model, seed: int) -> None:
    """Set all weights and buffers: norms to one, biases to zero, matrices to normal draws.

    `Model.initial_std` gives the standard deviation. Parameters may be plain or DTensors, on any
    device; values depend on seed, names and shapes alone. If `Model.initial_weights` returns whole
    weights, each rank copies its part.
    """
    model.reset_buffers()
    given = model.initial_weights(seed)
    for name, parameter in model.named_parameters():
        local, region = local_part(parameter)
        if given is not None:
            local.copy_(given[name][region])
        elif parameter.ndim < 2:
            local.fill_(0 if name.endswith("bias") else 1)
        else:
            _fill_normal(
                local, region, parameter.shape, std=model.initial_std(name), key=f"{seed}:{name}"
            )


def local_part(parameter: nn.Parameter) -> tuple[Tensor, tuple[slice, ...]]:
    """Return this rank's part of a parameter, and its region in the whole one."""
    if not isinstance(parameter, DTensor):
        return parameter.data, tuple(slice(0, size) for size in parameter.shape)
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return parameter.to_local(), tuple(map(slice, offset, map(add, offset, shape)))


def _fill_normal(
    local: Tensor, region: tuple[slice, ...], shape: torch.Size, *, std: float, key: str
) -> None:
    """Fill `local`, the `region` of a parameter of `shape`, block by block."""
    rows, *within_row = region
    rows_of_block = max(BLOCK_ELEMENTS // shape[1:].numel(), 1)
    for block in range(rows.start // rows_of_block, -(-rows.stop // rows_of_block)):
        start = block * rows_of_block
        low, high = max(start, rows.start), min(start + rows_of_block, rows.stop)
        # The generator draws in order: rows of the block after `high` need not be drawn.
        drawn = _normal((high - start, *shape[1:]), std=std, key=f"{key}:{block}")
        part = drawn[(slice(low - start, None), *within_row)]
        local[low - rows.start : high - rows.start].copy_(part)


def _normal(shape: tuple[int, ...], *, std: float, key: str) -> Tensor:
    entropy = int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "little")
    generator = np.random.Generator(np.random.SFC64(entropy))
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).mul_(std)
