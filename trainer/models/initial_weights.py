"""Initial weights, which are bit-equal on every layout.

Each parameter is divided into blocks of rows, and each block has its own generator, seeded by
(seed, name, block). A rank draws only the blocks of its shard; the result equals a slice of the
whole parameter. Several threads, as many as torch may use, draw different blocks, because one
thread would take minutes for 8 billion weights.

The generator is numpy's, because torch's CPU generator has two faults. It uses only 32 bits of its
seed, so two blocks of a large model could be equal. And its values depend on the vector width of
the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from operator import add

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainer.models.base import Model

BLOCK_ELEMENTS = 1 << 22


@torch.no_grad()
def init_weights(model: Model, seed: int, *, draws: bool = True) -> None:
    """Set all weights and buffers: norms to one, biases to zero, matrices to normal draws.

    `Model.initial_std` returns the standard deviation. Parameters may be plain tensors or DTensors,
    on any device; the values depend only on seed, names and shapes. If `Model.initial_weights`
    returns whole weights, each rank copies its part of them.

    Args:
        model: model whose parameters have memory.
        seed: seed of the draws.
        draws: whether to set weights; otherwise only buffers are set, because weights will be
            loaded.
    """
    model.reset_buffers()
    if not draws:
        return
    given = model.initial_weights(seed)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        drawn = []
        for name, parameter in model.named_parameters():
            local, region = local_part(parameter)
            if given is not None:
                local.copy_(given[name][region])
            elif (constant := model.initial_constant(name, parameter)) is not None:
                local.fill_(constant)
            else:
                fill = partial(_fill, std=model.initial_std(name), key=f"{seed}:{name}")
                blocks = _blocks(local, region, parameter.shape)
                drawn += [pool.submit(fill, block) for block in blocks]
        try:
            for block in drawn:
                block.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # an error must end the launch immediately
            raise


def local_part(parameter: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """Return this rank's part of a parameter or buffer, and its region in the whole one."""
    if not isinstance(parameter, DTensor):
        return parameter.data, tuple(slice(0, size) for size in parameter.shape)
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return parameter.to_local(), tuple(map(slice, offset, map(add, offset, shape)))


@dataclass(frozen=True)
class _Block:
    """The rows of a block that are in this rank's part."""

    number: int
    """Index of the block among the blocks of the whole parameter."""
    local: Tensor
    """Rows of the block, in this rank's part."""
    shape: tuple[int, ...]
    """Shape to draw: whole rows, from the block's first row to its last row in this rank's part."""
    within: tuple[slice, ...]
    """Slices of `shape` that this rank's part covers."""


def _blocks(local: Tensor, region: tuple[slice, ...], shape: torch.Size) -> Iterator[_Block]:
    """Yield the blocks of `local`, which is the `region` of a parameter with `shape`."""
    rows, *within_row = region
    rows_of_block = max(BLOCK_ELEMENTS // shape[1:].numel(), 1)
    for number in range(rows.start // rows_of_block, -(-rows.stop // rows_of_block)):
        start = number * rows_of_block
        low, high = max(start, rows.start), min(start + rows_of_block, rows.stop)
        yield _Block(
            number,
            local[low - rows.start : high - rows.start],
            # The generator draws in order, so rows of the block after `high` need not be drawn.
            (high - start, *shape[1:]),
            (slice(low - start, None), *within_row),
        )


@torch.no_grad()  # per thread: the caller's `no_grad` does not apply here
def _fill(block: _Block, *, std: float, key: str) -> None:
    drawn = _normal(block.shape, std=std, key=f"{key}:{block.number}")
    block.local.copy_(drawn[block.within])


def _normal(shape: tuple[int, ...], *, std: float, key: str) -> Tensor:
    entropy = int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "little")
    generator = np.random.Generator(np.random.SFC64(entropy))
    drawn = generator.standard_normal(shape, dtype=np.float32)
    drawn *= np.float32(std)  # by numpy, because torch would start further threads in each thread
    return torch.from_numpy(drawn)
