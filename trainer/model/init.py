"""Initial weights: drawn by name in full shape, so that every layout starts from the same bits.

Each parameter is cut into blocks of rows, and each block has a generator of its own, seeded by
(seed, name, block). A rank draws only the blocks that hold its shard: the result is that of drawing
the whole parameter and slicing it, at the cost of the shard alone.

The generator is numpy's: torch's CPU generator uses 32 bits of its seed, so that among the blocks
of a large model two would be equal, and its values depend on the vector width of the CPU.
"""

from __future__ import annotations

import math
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainer.model.decoder import Transformer

BLOCK_ELEMENTS = 1 << 22
STD = 0.02


@torch.no_grad()
def init_weights(model: Transformer, seed: int) -> None:
    """Set all weights and buffers: norms to one, matrices to normal draws around zero.

    The standard deviation is 0.02; for the projections into the residual stream it is divided by
    sqrt(2 x layers), so that the stream does not widen with depth (Radford et al., GPT-2, 2019).
    Works on plain and on distributed parameters, of any device; the values depend on seed, names
    and shapes alone.
    """
    residual_std = STD / math.sqrt(2 * model.arch.n_layers)
    for name, parameter in model.named_parameters():
        local, offset = local_part(parameter)
        if parameter.ndim == 1:
            local.fill_(1)
        else:
            std = residual_std if name.endswith(("wo.weight", "w2.weight")) else STD
            _fill_normal(local, offset, parameter.shape[1], std=std, key=f"{seed}:{name}")
    model.positions.reset()


def local_part(parameter: nn.Parameter) -> tuple[Tensor, tuple[int, ...]]:
    """Return the part that this rank holds, and its offset in the whole parameter."""
    if not isinstance(parameter, DTensor):
        return parameter.data, (0,) * parameter.ndim
    _, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return parameter.to_local(), offset


def _fill_normal(
    local: Tensor, offset: tuple[int, ...], columns: int, *, std: float, key: str
) -> None:
    """Draw the rows that `local` covers, block by block, and keep its part of each."""
    rows_of_block = max(BLOCK_ELEMENTS // columns, 1)
    first_row, first_column = offset
    end_row = first_row + local.shape[0]
    for block in range(first_row // rows_of_block, -(-end_row // rows_of_block)):
        start = block * rows_of_block
        low, high = max(start, first_row), min(start + rows_of_block, end_row)
        # Numbers come in order, so the rows of the block that follow need not be drawn.
        drawn = _normal((high - start, columns), std=std, key=f"{key}:{block}")
        part = drawn[low - start :, first_column : first_column + local.shape[1]]
        local[low - first_row : high - first_row].copy_(part)


def _normal(shape: tuple[int, int], *, std: float, key: str) -> Tensor:
    entropy = int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "little")
    generator = np.random.Generator(np.random.SFC64(entropy))
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).mul_(std)
