"""`StreamLoader` on streams without torchtitan: the same rows on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from trainyard.adapters.torchtitan.batch_split import BatchSplit, split_batch
from trainyard.adapters.torchtitan.stream_loader import IGNORED_LABEL, StreamLoader, sample_id
from trainyard.adapters.torchtitan.stream_samples import StreamSamples

BATCH = 12
FACTS = {"training.global_batch_size": BATCH}


class Rest:
    """Stands for a part of a data set that has a length."""

    num_rows = 2

    def __init__(self, length: int = 2) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[Any]):
    """Packs endless documents; its state has what is left of the last one."""

    def __init__(self, row: int, end: int | None = None, length: int = 2) -> None:
        self.row, self.end, self._data = row, end, Rest(length)
        self.read, self.buffer = 0, list[int]()

    def __iter__(self) -> Iterator[Any]:
        while self.end is None or self.read < self.end:
            self.buffer += [1000 * self.row + self.read] * (2 + (self.row + self.read) % 3)
            self.read += 1
            while len(self.buffer) >= 4:
                tokens = torch.tensor(self.buffer[:4])
                self.buffer = self.buffer[4:]
                yield {"input": tokens, "positions": torch.arange(4)}, tokens + 1

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read, "buffer": self.buffer, "nested": {0: (1, None)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert state["nested"] == {0: (1, None)}
        self.read, self.buffer = state["read"], state["buffer"]


def loaders(dp: int, *, most: int = 2, **options: Any) -> list[StreamLoader]:
    """The loader of each rank."""
    split = split_batch(BATCH, most, dp=dp)
    return [loader(split, rank, **options) for rank in range(dp)]


def loader(
    split: BatchSplit, rank: int, *, end: int | None = None, length: int = 2, **options: Any
) -> StreamLoader:
    def create(row: int) -> Any:
        return DataLoader(Stream(row, end, length), batch_size=1)

    return StreamLoader(create, split, dp_rank=rank, facts=FACTS, **options)


def train(ranks: list[StreamLoader], steps: int) -> tuple[list[list[list[int]]], dict[str, Any]]:
    """Return the rows of each step, and what all ranks save after the last one."""
    found = []
    batches = [iter(rank) for rank in ranks]
    rounds = len(ranks[0]._rows)
    for _ in range(steps):
        rows: dict[int, list[int]] = {}
        for rank, own in zip(ranks, batches, strict=True):
            micro_batches = [next(own) for _ in range(rounds)]
            sizes = {len(labels) for _, labels in micro_batches}
            assert len(sizes) == 1, "all micro-batches have one size"
            read = [row for part in rank._rows for row in part]
            inputs = [row.tolist() for each, labels in micro_batches for row in real(each, labels)]
            rows |= dict(zip(read, inputs, strict=True))
        assert sorted(rows) == list(range(BATCH))
        found.append([rows[row] for row in range(BATCH)])
    saved: dict[str, Any] = {}
    for rank in ranks:
        saved |= rank.state_dict()
    return found, saved


def real(inputs: Mapping[str, torch.Tensor], labels: torch.Tensor) -> list[torch.Tensor]:
    """The rows with labels, which precede the padded ones."""
    kept = [bool((row != IGNORED_LABEL).all()) for row in labels]
    assert kept == sorted(kept, reverse=True)
    assert all((row == IGNORED_LABEL).all() for row in labels[sum(kept) :])
    return list(inputs["input"][: sum(kept)])


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 5, 7, 12])
def test_each_number_of_ranks_reads_the_same_rows(dp: int) -> None:
    whole, saved = train(loaders(1), 6)
    rows, state = train(loaders(dp), 6)
    assert rows == whole
    assert state == saved


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_on_other_ranks_continues_each_stream(workers: int) -> None:
    whole, _ = train(loaders(1), 7)
    rows: list[list[list[int]]] = []
    saved: dict[str, Any] | None = None
    for dp, steps in ((2, 3), (5, 1), (3, 3)):
        ranks = loaders(dp, workers=workers)
        for rank in ranks if saved else []:
            assert saved is not None
            rank.load_state_dict({key: saved[key] for key in rank.state_dict()})
        more, saved = train(ranks, steps)
        rows += more
    assert rows == whole


def test_workers_that_read_ahead_do_not_change_the_state() -> None:
    rows, saved = train(loaders(2), 3)
    assert train(loaders(2, workers=3, steps_ahead=4), 3) == (rows, saved)


def test_ranks_end_in_the_same_step() -> None:
    # The streams end after different numbers of samples.
    ended: list[bool] = []

    def any_ended(one: bool) -> bool:
        ended.append(one)
        return one or len(ended) == 3

    (rank,) = loaders(1, most=12, end=8, any_ended=any_ended)
    assert len(list(rank)) == 2
    assert ended == [False, False, False]
    (rank,) = loaders(1, most=12, end=8)
    assert len(list(rank)) > 2


def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer samples than the 12 streams"):
        loaders(2, length=0)


def test_a_loader_of_another_form_is_refused() -> None:
    split = split_batch(BATCH, 2, dp=1)
    with pytest.raises(ValueError, match="the loader DataLoader of the recipe"):
        StreamLoader(
            lambda row: DataLoader(Stream(row), batch_size=2), split, dp_rank=0, facts=FACTS
        )


def test_a_state_of_another_order_is_refused() -> None:
    (rank,) = loaders(1)
    state = rank.state_dict() | {"facts": '{"training.global_batch_size": 16}'}
    with pytest.raises(ValueError, match=r"global_batch_size=12 differs .*=16"):
        rank.load_state_dict(state)
    with pytest.raises(ValueError, match="exclude-from-loading dataloader"):
        rank.load_state_dict({})
    with pytest.raises(ValueError, match="no state 'stream-000003'"):
        rank.load_state_dict({k: v for k, v in rank.state_dict().items() if k != "stream-000003"})


def test_a_data_set_of_another_length_is_refused() -> None:
    (rank,), (shorter,) = loaders(1), loaders(1, length=1)
    with pytest.raises(
        ValueError, match=r"stream 0 has \[1\] samples, and \[2\] in the checkpoint"
    ):
        shorter.load_state_dict(rank.state_dict())


class LongChats(Stream):
    """Drops samples that are too long, as torchtitan's chats; an epoch has two samples."""

    long_from: int = 0

    def __iter__(self) -> Iterator[Any]:
        for epoch in range(100):  # torchtitan's loop has no end
            for _ in range(2 if epoch < self.long_from else 0):
                yield {"input": torch.arange(4)}, torch.arange(4)
            self.reloop()

    def reloop(self) -> None:
        self.buffer = []


@pytest.mark.parametrize("long_from", [0, 3])
def test_a_stream_whose_samples_are_all_too_long_is_refused(long_from: int) -> None:
    stream = LongChats(5)
    stream.long_from = long_from
    samples = iter(StreamSamples(stream, 5))
    for _ in range(2 * long_from):
        next(samples)
    with pytest.raises(ValueError, match="stream 5 found no sequence in a whole epoch"):
        next(samples)


def test_an_epoch_that_only_fills_the_next_sequence_is_legal() -> None:
    class Slow(LongChats):
        def __iter__(self) -> Iterator[Any]:
            self._inputs_buffer: list[int] = []
            while len(self._inputs_buffer) < 4:
                self._inputs_buffer.append(1)
                self.reloop()
            yield {"input": torch.arange(4)}, torch.arange(4)

    assert len(list(StreamSamples(Slow(0), 0))) == 1


def test_samples_of_another_form_are_refused() -> None:
    multimodal = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}]

    class Images(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(multimodal)

    with pytest.raises(ValueError, match="a sample of stream 0 is a dict: legal is a pair"):
        next(iter(StreamSamples(Images(), 0)))


class OwnCursor:
    """Stands for an object of a data set's own class."""


def test_a_state_that_no_resume_could_load_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (rank,) = loaders(1)
    monkeypatch.setattr(Stream, "state_dict", lambda _: {"cursor": OwnCursor()})
    with pytest.raises(ValueError, match="the state of stream 0 cannot be loaded: legal in"):
        rank.state_dict()
    with pytest.raises(ValueError, match="the state of stream 0 cannot be loaded"):
        loaders(1)


def test_the_id_of_a_sequence_is_a_hash_of_tokens_and_labels() -> None:
    tokens = torch.arange(4)
    ids = {
        sample_id(({"input": inputs}, labels))
        for inputs, labels in ((tokens, tokens), (tokens, tokens + 1), (tokens + 1, tokens))
    }
    assert len(ids) == 3
    assert {len(each) for each in ids} == {16}
