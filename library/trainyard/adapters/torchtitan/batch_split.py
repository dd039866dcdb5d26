"""Micro-batches of one step: their size, their number, and the rows of each data-parallel rank.

This module does not import torch, so layouts can be listed anywhere. A row is one sequence of the
global batch. All micro-batches have the same size, as compiled models and CUDA graphs require;
padded rows fill incomplete micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.training.batch_partition import BatchPartition


@dataclass(frozen=True)
class BatchSplit:
    """Split of a global batch over data-parallel ranks."""

    global_batch_size: int
    """Rows in one step, over all ranks."""
    dp: int
    """Data-parallel ranks."""
    local_batch_size: int
    """Rows of a rank in one accumulation step, including padded rows."""

    @property
    def accumulation_steps(self) -> int:
        """Accumulation steps in one step."""
        return self._partition.rounds

    @property
    def padded_rows(self) -> int:
        """Number of rows of padding that one step adds, over all ranks."""
        rows = self.accumulation_steps * self.local_batch_size * self.dp
        return rows - self.global_batch_size

    def rows(self, dp_rank: int) -> list[range]:
        """Return a rank's rows of each accumulation step, without padded rows."""
        return self._partition.for_rank(dp_rank)

    @property
    def _partition(self) -> BatchPartition:
        return BatchPartition(self.global_batch_size, self.local_batch_size, self.dp)


def split_batch(global_batch_size: int, most: int, *, dp: int, may_pad: bool = True) -> BatchSplit:
    """Return the split with the fewest padded rows; at a tie, the one with the largest micro-batch.

    Args:
        global_batch_size: rows in one step, over all ranks.
        most: maximum number of rows of a rank in one accumulation step.
        dp: data-parallel ranks.
        may_pad: whether padded rows are legal.

    Raises:
        ValueError: no split is legal; the message names legal numbers of ranks.
    """
    per_rank = -(-global_batch_size // dp)
    sizes = (
        size
        for size in range(min(per_rank, most), 0, -1)
        # Every rank needs a row of its own in each step.
        if per_rank % size == 0 and dp <= -(-global_batch_size // size)
    )
    if (size := next(sizes, None)) is None:
        raise ValueError(
            f"{dp} data-parallel ranks do not fit training.global_batch_size={global_batch_size}: "
            f"legal is up to {global_batch_size} ranks, each with a row"
        )
    split = BatchSplit(global_batch_size, dp, size)
    if split.padded_rows and not may_pad:
        legal = " and ".join(map(str, unpadded_degrees(global_batch_size, dp=dp)))
        raise ValueError(
            f"{dp} data-parallel ranks do not divide training.global_batch_size="
            f"{global_batch_size}, and the routers of a mixture of experts would count padded "
            f"rows: the nearest legal numbers are {legal}"
        )
    return split


def unpadded_degrees(global_batch_size: int, *, dp: int) -> list[int]:
    """Return the nearest numbers of ranks below and above `dp` that need no padded row."""
    divisors = [n for n in range(1, global_batch_size + 1) if global_batch_size % n == 0]
    return [
        *[n for n in divisors if n < dp][-1:],
        *[n for n in divisors if n > dp][:1],
    ]


def required_batch_size(value: int) -> int:
    """Return a recipe's global batch size.

    Raises:
        ValueError: the recipe leaves it to torchtitan, whose default grows with the ranks.
    """
    if value < 1:
        raise ValueError(
            f"training.global_batch_size={value} would grow with the ranks: set "
            "config.training.global_batch_size, or --training.global-batch-size, to the sequences "
            "of one step over all ranks"
        )
    return value
