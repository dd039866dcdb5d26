"""Digests over the sequences of a step and their order."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from trainyard.training.batch_partition import BatchPartition


def sequence_hash(position: int, tokens_S: NDArray[np.int64]) -> int:
    """Return XXH3-64 of a sequence and its position in the stream, as a signed 64-bit number.

    The number is signed because ranks exchange hashes in an int64 tensor. Pass the buffer that the
    model gets. A second read of the data would not reveal an error in the copy to that buffer.

    Args:
        position: global position in the endless stream.
        tokens_S: the token ids of the sequence `[seq_len]`.
    """
    buffer = np.ascontiguousarray(tokens_S, dtype="<i8")
    value = xxhash.xxh3_64_intdigest(buffer.data, seed=position)
    return value - (1 << 64) if value >> 63 else value


def step_digest(hashes: Iterable[int]) -> str:
    """Return XXH3-128, in hexadecimal, of a step's sequence hashes in global order."""
    ordered = list(hashes)
    return xxhash.xxh3_128_hexdigest(struct.pack(f"<{len(ordered)}q", *ordered))


def in_global_order(partition: BatchPartition, by_rank: Sequence[Sequence[int]]) -> list[int]:
    """Return a step's sequence hashes in global order.

    Args:
        partition: partition of the global batch.
        by_rank: for each data-parallel rank, the hashes of its sequences in the order of its
            micro-batches. Idle rounds have no hash. Padding at the end of a rank's hashes is
            ignored.
    """
    ordered = [0] * partition.global_batch_size
    for dp_rank in range(partition.dp):
        offsets = [offset for dealt in partition.for_rank(dp_rank) for offset in dealt]
        for offset, value in zip(offsets, by_rank[dp_rank][: len(offsets)], strict=True):
            ordered[offset] = value
    return ordered
