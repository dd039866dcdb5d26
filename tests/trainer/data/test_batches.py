"""Micro-batches and the thread that reads them ahead."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.trainer.data.helpers import SEQ_LEN, open_text, text_root
from trainer.data.batches import NO_LABEL, BatchReader, MicroBatch, micro_batches
from trainer.data.dataset import Dataset
from trainyard.training.batch_partition import BatchPartition


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return open_text(text_root(tmp_path, sequences=10))


def test_labels_are_the_tokens_one_place_further(dataset: Dataset) -> None:
    partition = BatchPartition(8, 3, 2)
    batches = micro_batches(dataset, position=4, partition=partition, dp_rank=0)
    assert [b.positions.tolist() for b in batches] == [[4, 5, 6], [10, 11]]
    for batch in batches:
        assert batch.weight == 1
        assert batch.tokens.shape == batch.labels.shape == (batch.positions.size, SEQ_LEN)
        for row, position in enumerate(batch.positions):
            window = dataset.windows(np.array([position]))[0]
            assert np.array_equal(batch.tokens[row], window[:-1])
            assert np.array_equal(batch.labels[row], window[1:])


def test_arrays_are_what_a_tensor_can_share(dataset: Dataset) -> None:
    for batch in micro_batches(dataset, position=0, partition=BatchPartition(3, 2, 2), dp_rank=1):
        for array in (batch.tokens, batch.labels, batch.positions):
            assert array.dtype == np.int64
            assert array.flags.c_contiguous
            assert array.flags.writeable


def test_a_rank_without_work_runs_one_sequence_of_weight_zero(dataset: Dataset) -> None:
    partition = BatchPartition(5, 1, 3)
    idle = micro_batches(dataset, position=7, partition=partition, dp_rank=2)[1]
    assert idle.weight == 0
    first = micro_batches(dataset, position=7, partition=partition, dp_rank=0)[0]
    assert idle.tokens.tolist() == first.tokens[:1].tolist(), "a real one: models may divide"
    assert idle.labels.tolist() == [[NO_LABEL] * SEQ_LEN]
    assert idle.positions.shape == (1,)


def test_segments_come_with_document_masks_only(tmp_path: Path) -> None:
    root = text_root(tmp_path, sequences=10)
    partition = BatchPartition(5, 1, 3)
    for masks in (False, True):
        dataset = open_text(root, document_masks=masks)
        busy, idle = micro_batches(dataset, position=7, partition=partition, dp_rank=2)
        if not masks:
            assert busy.segments is idle.segments is None
            continue
        assert busy.segments is not None
        assert np.array_equal(busy.segments, dataset.segments(busy.positions))
        assert idle.segments is not None
        assert idle.segments.tolist() == [[0] * SEQ_LEN]
        assert idle.segments.dtype == busy.segments.dtype == np.int32


@pytest.mark.parametrize("dp_rank", [-1, 2])
def test_a_rank_that_does_not_exist_is_refused(dataset: Dataset, dp_rank: int) -> None:
    with pytest.raises(ValueError, match=f"dp_rank={dp_rank} must be from 0 to 1"):
        micro_batches(dataset, position=0, partition=BatchPartition(4, 1, 2), dp_rank=dp_rank)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_reader_gives_consecutive_batches(dataset: Dataset, prefetch: int) -> None:
    partition = BatchPartition(7, 2, 2)
    with BatchReader(
        dataset, position=3, partition=partition, dp_rank=1, prefetch=prefetch
    ) as reader:
        for step, batches in enumerate(islice(reader, 6)):
            expected = micro_batches(dataset, position=3 + 7 * step, partition=partition, dp_rank=1)
            assert _values(batches) == _values(expected)


def test_the_reader_reads_ahead_as_far_as_asked(dataset: Dataset) -> None:
    counting = _Watched(dataset)
    with BatchReader(
        counting, position=0, partition=BatchPartition(2, 2, 1), dp_rank=0, prefetch=3
    ) as reader:
        counting.wait_for(3)
        next(reader)
        counting.wait_for(4)
    # Closing waits for the thread: all reads have ended.
    assert counting.reads == 4


def test_what_fails_in_the_thread_is_raised_where_the_batch_is_needed(dataset: Dataset) -> None:
    broken = _Watched(dataset, fail_at=3)
    with BatchReader(
        broken, position=0, partition=BatchPartition(2, 2, 1), dp_rank=0, prefetch=2
    ) as reader:
        next(reader)
        next(reader)
        with pytest.raises(OSError, match="read number 3 failed"):
            next(reader)


def test_closing_ends_the_thread_also_after_an_error(dataset: Dataset) -> None:
    before = set(threading.enumerate())

    def fail_in_a_step() -> None:
        partition = BatchPartition(2, 2, 1)
        with BatchReader(
            dataset, position=0, partition=partition, dp_rank=0, prefetch=64
        ) as reader:
            next(reader)
            raise KeyError("of the step")

    with pytest.raises(KeyError, match="of the step"):
        fail_in_a_step()
    assert set(threading.enumerate()) <= before


class _Watched(Dataset):
    """A dataset that counts its reads, and fails at one of them."""

    def __init__(self, dataset: Dataset, fail_at: int | None = None) -> None:
        self.__dict__.update(dataset.__dict__)
        self.reads = 0
        self._fail_at = fail_at
        self._changed = threading.Condition()

    def windows(self, positions_B: NDArray[np.int64]) -> NDArray[np.int64]:
        with self._changed:
            self.reads += 1
            self._changed.notify_all()
            if self.reads == self._fail_at:
                raise OSError(f"read number {self.reads} failed")
        return super().windows(positions_B)

    def wait_for(self, reads: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.reads >= reads, timeout=30)


def _values(batches: list[MicroBatch]) -> list[tuple[list[int], ...]]:
    return [
        (b.tokens.tolist(), b.labels.tolist(), b.positions.tolist(), [b.weight]) for b in batches
    ]
