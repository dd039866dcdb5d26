"""Split of a global batch into micro-batches over the data-parallel ranks.

Planner and trainer share this rule. The global batch is cut in order into micro-batches of
`micro_batch_size` sequences; the last micro-batch may be smaller. Micro-batch i goes to
data-parallel rank i mod dp. In the last round, ranks without a micro-batch run one with weight
zero, so that all ranks join every collective.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchPartition:
    """Partition of one global batch into micro-batches over `dp` ranks.

    Raises:
        ValueError: a number is below 1, or there are fewer micro-batches than ranks, so that some
            ranks never have work.
    """

    global_batch_size: int
    """Number of sequences in one optimizer step."""
    micro_batch_size: int
    """Number of sequences in one forward pass of a rank."""
    dp: int
    """Number of data-parallel ranks."""

    def __post_init__(self) -> None:
        if min(self.global_batch_size, self.micro_batch_size, self.dp) < 1:
            raise ValueError(f"every number of {self} must be positive")
        if self.dp > self.micro_batches:
            # dp micro-batches need dp - 1 full ones, and at least one sequence in the last.
            smaller = (self.global_batch_size - 1) // (self.dp - 1)
            or_smaller = f" or micro_batch_size up to {smaller}" if smaller else ""
            raise ValueError(
                f"dp={self.dp} is more than the {self.micro_batches} micro-batches of "
                f"global_batch_size={self.global_batch_size} with "
                f"micro_batch_size={self.micro_batch_size}; "
                f"legal: dp up to {self.micro_batches}{or_smaller}"
            )

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches in one step, over all ranks."""
        return -(-self.global_batch_size // self.micro_batch_size)

    @property
    def rounds(self) -> int:
        """Number of micro-batches per rank in a step, including those of weight zero."""
        return -(-self.micro_batches // self.dp)

    @property
    def idle_share(self) -> float:
        """Share of sequence places that stay empty in a step's micro-batches; from 0 to below 1."""
        return 1 - self.global_batch_size / (self.rounds * self.dp * self.micro_batch_size)

    def for_rank(self, dp_rank: int) -> list[range]:
        """Return a rank's sequences in each round, as offsets in the global batch; none in an idle
        round."""
        # Round-robin, not in blocks, so that the sequences of a round are adjacent at any dp.
        starts = range(0, self.global_batch_size, self.micro_batch_size)
        batches = [
            range(start, min(start + self.micro_batch_size, self.global_batch_size))
            for start in starts[dp_rank :: self.dp]
        ]
        return batches + [range(0)] * (self.rounds - len(batches))
