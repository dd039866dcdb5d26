"""One rank's part of each global batch, prefetched by a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trainer.data.dataset import Dataset
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.data_stream import advanced

NO_LABEL = -100
"""Label that excludes a token from the loss; torch uses the same default."""


@dataclass(frozen=True)
class MicroBatch:
    """Input of one forward pass: b sequences of S tokens, in contiguous arrays."""

    tokens: NDArray[np.int64]
    """Input token ids `[b, S]`."""
    labels: NDArray[np.int64]
    """Label of each input token `[b, S]`: the next token; the loss ignores the label -100."""
    positions: NDArray[np.int64]
    """Position of each sequence in the endless stream `[b]`."""
    weight: int
    """Weight of the micro-batch: 1, or 0 in an idle round. In an idle round, the rank runs one
    sequence of the step without labels.
    """
    segments: NDArray[np.int32] | None = None
    """Document index of each token `[b, S]`, from 0 in each sequence; None without document masks.
    """


def micro_batches(
    dataset: Dataset,
    *,
    position: int,
    partition: BatchPartition,
    dp_rank: int,
    skipped: Sequence[tuple[int, int]] = (),
) -> list[MicroBatch]:
    """Return the micro-batches of one rank in one global batch, `partition.rounds` in number.

    Args:
        dataset: source of the sequences.
        position: position of the global batch's first sequence in the endless stream.
        partition: split of the global batch.
        dp_rank: data-parallel rank, below `partition.dp`.
        skipped: half-open ranges of positions that the stream omits.
    """
    if not 0 <= dp_rank < partition.dp:
        raise ValueError(f"dp_rank={dp_rank} must be from 0 to {partition.dp - 1}")
    return [
        _micro_batch(
            dataset,
            np.array([advanced(position, i, skipped) for i in offsets], dtype=np.int64),
            idle=advanced(position, 0, skipped),
        )
        for offsets in partition.for_rank(dp_rank)
    ]


def _micro_batch(dataset: Dataset, positions_B: NDArray[np.int64], *, idle: int) -> MicroBatch:
    if not positions_B.size:
        # A real sequence: with zeros alone, a model that masks padding would return NaN, and 0 x
        # NaN is NaN.
        one = _micro_batch(dataset, np.array([idle], dtype=np.int64), idle=idle)
        return replace(one, labels=np.full_like(one.labels, NO_LABEL), weight=0)
    windows_BT = dataset.windows(positions_B)
    return MicroBatch(
        tokens=np.ascontiguousarray(windows_BT[:, :-1]),
        labels=np.ascontiguousarray(windows_BT[:, 1:]),
        positions=positions_B,
        weight=1,
        segments=dataset.segments(positions_B) if dataset.document_masks else None,
    )


class BatchReader:
    """One rank's micro-batches of consecutive global batches, without end.

    A thread reads `prefetch` global batches ahead; with 0, each batch is read on demand. If a read
    fails, the `next` for that batch raises the error. The reader is a context manager.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        position: int,
        partition: BatchPartition,
        dp_rank: int,
        prefetch: int,
        skipped: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._dataset = dataset
        self._skipped = tuple(skipped)
        self._partition = partition
        self._dp_rank = dp_rank
        self._position = position  # position of the next global batch to read
        self._ahead: deque[Future[list[MicroBatch]]] = deque()
        self._prefetch = prefetch
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batch-reader")

    def __enter__(self) -> Self:
        while len(self._ahead) < self._prefetch:
            self._ahead.append(self._read_next())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        return self

    def __next__(self) -> list[MicroBatch]:
        self._ahead.append(self._read_next())
        return self._ahead.popleft().result()

    def _read_next(self) -> Future[list[MicroBatch]]:
        position = self._position
        self._position = advanced(position, self._partition.global_batch_size, self._skipped)
        return self._thread.submit(
            micro_batches,
            self._dataset,
            position=position,
            partition=self._partition,
            dp_rank=self._dp_rank,
            skipped=self._skipped,
        )
