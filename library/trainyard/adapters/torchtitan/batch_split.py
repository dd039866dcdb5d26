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
    unit: int = 1
    """Divisor of `local_batch_size`: number of rows in a micro-batch of the pipeline."""

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


def split_batch(
    global_batch_size: int, most: int, *, dp: int, unit: int = 1, may_pad: bool = True
) -> BatchSplit:
    """Return the split with the fewest padded rows; at a tie, the one with the largest micro-batch.

    Args:
        global_batch_size: rows in one step, over all ranks.
        most: maximum number of rows of a rank in one accumulation step.
        dp: data-parallel ranks.
        unit: divisor of the rows of an accumulation step.
        may_pad: whether padded rows are legal.

    Raises:
        ValueError: no split is legal; the message names the nearest legal numbers of ranks.
    """
    per_rank = -(-global_batch_size // (dp * unit))  # in units
    sizes = [
        parts * unit
        for parts in range(min(per_rank, most // unit), 0, -1)
        # Every rank needs a row of its own in each step.
        if per_rank % parts == 0 and dp <= -(-global_batch_size // (parts * unit))
    ]
    if not sizes:
        raise ValueError(
            f"{dp} data-parallel ranks with micro-batches of {unit} rows do not fit "
            f"training.global_batch_size={global_batch_size}: legal is up to "
            f"{-(-global_batch_size // unit)} ranks, each with a row"
        )
    split = BatchSplit(global_batch_size, dp, sizes[0], unit)
    if split.padded_rows and not may_pad:
        legal = " and ".join(map(str, unpadded_degrees(global_batch_size, dp=dp, unit=unit)))
        raise ValueError(
            f"{dp} data-parallel ranks do not divide training.global_batch_size="
            f"{global_batch_size} into micro-batches of {unit}, and the routers of a mixture of "
            f"experts would count padded rows: the nearest legal numbers are {legal or 'none'}"
        )
    return split


def unpadded_degrees(global_batch_size: int, *, dp: int, unit: int = 1) -> list[int]:
    """Return the nearest numbers of ranks below and above `dp` that need no padded row."""
    parts, rest = divmod(global_batch_size, unit)
    divisors = [] if rest else [n for n in range(1, parts + 1) if parts % n == 0]
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
