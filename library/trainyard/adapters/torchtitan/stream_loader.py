"""Loader of a rank's rows: row j of every step comes from stream j, on any number of ranks.

A stream is a data set of the recipe that was split by `dp_rank=j` of `dp_world_size=G`, for G rows
in the global batch. Its state belongs to the row, not to the rank.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from trainyard.adapters.torchtitan.batch_split import BatchSplit
from trainyard.adapters.torchtitan.recipe import check_order
from trainyard.adapters.torchtitan.stream_samples import Sample, StreamSamples

IGNORED_LABEL = -100
"""Label without a loss, as in torchtitan."""
FACTS = "facts"
"""Key of the order's facts in the state of a loader."""

Batch = tuple[dict[str, Any], torch.Tensor]


class StreamLoader:
    """Yields this rank's micro-batches.

    A step has `split.accumulation_steps` micro-batches. All rows of a step are read before its
    first micro-batch, so the state always lies between two steps, even if workers have read ahead.

    Args:
        create: returns torchtitan's loader of one stream, with batches of one sample.
        split: rows of each rank.
        dp_rank: data-parallel rank of this process.
        facts: what the order depends on, as values of JSON.
        workers: maximum number of worker processes; each reads a part of the streams.
        steps_ahead: steps that a worker reads in advance.
        pin_memory: whether to copy batches to pinned memory.
        any_ended: returns on all ranks whether a stream of any rank has ended; None if streams are
            endless.

    Raises:
        ValueError: a stream has no sample, or its loader or its state is not supported.
    """

    def __init__(
        self,
        create: Callable[[int], Any],
        split: BatchSplit,
        *,
        dp_rank: int,
        facts: Mapping[str, Any],
        workers: int = 0,
        steps_ahead: int = 2,
        pin_memory: bool = False,
        any_ended: Callable[[bool], bool] | None = None,
    ) -> None:
        self._rows = split.rows(dp_rank)
        self._size = split.local_batch_size
        self._facts = facts
        self._ahead = steps_ahead
        self._pins = pin_memory
        self._any_ended = any_ended
        self._streams: dict[int, Any] = {}
        self._collate: Callable[[Sequence[Sample]], Batch]
        for row in (row for rows in self._rows for row in rows):
            try:
                loader = create(row)
            except IndexError as error:  # `datasets` cannot take an empty part of a data set
                raise _too_few(row, split.global_batch_size) from error
            _check_loader(loader, row, split.global_batch_size)
            self._streams[row] = loader.dataset
            self._collate = loader.collate_fn
        self._workers = min(workers, len(self._streams))
        self._saved: dict[int, bytes] = {}
        """States of streams that worker processes read."""
        self.step_samples: dict[int, Sample] = {}
        """Samples of the current step by row."""
        self.state_dict()  # refuses states that no resume could read

    def __iter__(self) -> Iterator[Batch]:
        for samples in self._steps():
            self.step_samples = samples
            for rows in self._rows:
                yield self._batch([samples[row] for row in rows])

    def _steps(self) -> Iterator[dict[int, Sample]]:
        shares = [iter(share) for share in self._shares()]
        while True:
            parts = [next(share) for share in shares]
            ended = any(part is None for part in parts)
            if self._any_ended is not None:
                ended = self._any_ended(ended)
            if ended:
                return
            step = {row: found for part in parts for row, found in part.items()}
            self._saved |= {row: state for row, (_, state) in step.items() if state is not None}
            yield {row: sample for row, (sample, _) in step.items()}

    def _shares(self) -> Iterator[Any]:
        if not self._workers:
            yield _Share(self._streams)
            return
        self._saved = {row: packed(stream) for row, stream in self._streams.items()}
        rows = list(self._streams)
        for number in range(self._workers):
            yield DataLoader(
                _Share({row: self._streams[row] for row in rows[number :: self._workers]}),
                batch_size=None,
                num_workers=1,
                collate_fn=_unchanged,
                prefetch_factor=self._ahead,
            )

    def _batch(self, samples: Sequence[Sample]) -> Batch:
        # A padded row repeats a sample of this rank, because some models reject empty rows.
        filler = samples[0] if samples else next(iter(self.step_samples.values()))
        inputs, labels = self._collate([*samples, *[filler] * (self._size - len(samples))])
        labels[len(samples) :] = IGNORED_LABEL
        return {k: self._pinned(v) for k, v in inputs.items()}, self._pinned(labels)

    def _pinned(self, value: Any) -> Any:
        return value.pin_memory() if self._pins and isinstance(value, torch.Tensor) else value

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each stream of this rank, and the facts of the order.

        Raises:
            ValueError: a resume could not read the state of a stream.
        """
        states = {}
        for row, stream in self._streams.items():
            states[_key(row)] = self._saved[row] if row in self._saved else packed(stream)
            _unpacked(states[_key(row)], row)
        return {FACTS: json.dumps(self._facts, sort_keys=True), **states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue each stream of this rank at its state, which any rank may have saved.

        Raises:
            ValueError: the order or a length differs, or a stream has no state.
        """
        self.check_order(state.get(FACTS))
        for row, stream in self._streams.items():
            if _key(row) not in state:
                raise ValueError(f"the checkpoint has no state {_key(row)!r}")
            found = _unpacked(state[_key(row)], row)
            _check_lengths(row, _lengths(stream), found["lengths"])
            stream.load_state_dict(found["state"])
        self._saved = {}

    def check_order(self, saved: str | None) -> None:
        """Refuse the facts of another order.

        Raises:
            ValueError: a fact differs, or there are no facts.
        """
        if not saved:
            raise ValueError(
                "the checkpoint has no state of exact data: legal is a checkpoint saved with "
                "exact(...), or --checkpoint.exclude-from-loading dataloader, which starts the "
                "data again"
            )
        check_order(self._facts, json.loads(saved))


class _Share(IterableDataset[dict[int, tuple[Sample, bytes | None]] | None]):
    """Streams that one process reads; an item has one sample of each, or is None after the end.

    In a worker process, an item also has the state of each stream after its sample.
    """

    def __init__(self, streams: dict[int, Any]) -> None:
        self.streams = streams

    def __iter__(self) -> Iterator[dict[int, tuple[Sample, bytes | None]] | None]:
        in_worker = get_worker_info() is not None
        sources = {row: iter(StreamSamples(data, row)) for row, data in self.streams.items()}
        while True:
            item: dict[int, tuple[Sample, bytes | None]] = {}
            for row, source in sources.items():
                sample = next(source, None)
                if sample is None:
                    break
                state = packed(self.streams[row]) if in_worker else None
                item[row] = sample, state
            yield item if len(item) == len(sources) else None


def sample_id(sample: Sample) -> bytes:
    """Return a hash of a sequence's tokens and labels."""
    inputs, labels = sample
    found = hashlib.blake2b(digest_size=16)
    for tensor in (inputs["input"], labels):
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.digest()


def packed(stream: Any) -> bytes:
    """Return a copy of a stream's state as bytes, because the next sample changes the state."""
    buffer = io.BytesIO()
    torch.save({"lengths": _lengths(stream), "state": stream.state_dict()}, buffer)
    return buffer.getvalue()


def _unpacked(state: bytes, row: int) -> dict[str, Any]:
    """Return the lengths and the state of a stream.

    Raises:
        ValueError: the state has objects of types that `torch.load` rejects with
            `weights_only=True`.
    """
    try:
        found: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"the state of stream {row} cannot be loaded: legal in the state_dict of a data set "
            f"are numbers, texts, tensors, and lists, tuples and dictionaries of them; {error}"
        ) from error
    return found


def _lengths(stream: Any) -> list[int]:
    return [len(part) for part in _sized_parts(stream)]


def _check_lengths(row: int, ours: list[int], theirs: list[int]) -> None:
    """Refuse a stream whose data set has changed its length."""
    if ours != theirs:
        raise ValueError(
            f"stream {row} has {ours} samples, and {theirs} in the checkpoint: the data set has "
            "another length; legal is the data set of the checkpoint, or "
            "--checkpoint.exclude-from-loading dataloader, which starts the data again"
        )


def _key(row: int) -> str:
    return f"stream-{row:06}"


def _unchanged(item: Any) -> Any:
    return item


def _check_loader(loader: Any, row: int, streams: int) -> None:
    """Refuse a loader that cannot be read by samples, or whose stream is empty."""
    data = getattr(loader, "dataset", None)
    has_state = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
    if not has_state or getattr(loader, "batch_size", None) != 1:
        raise ValueError(
            f"the loader {type(loader).__name__} of the recipe: legal is a ParallelAwareDataloader "
            "of a data set with state_dict and load_state_dict, and with the given batch size"
        )
    if any(not len(each) for each in _sized_parts(data)):
        raise _too_few(row, streams)


def _too_few(row: int, streams: int) -> ValueError:
    return ValueError(
        f"stream {row} has no sample: the data set has fewer samples than the {streams} streams "
        f"of training.global_batch_size={streams}; legal is at least one per stream"
    )


def _sized_parts(data: Any) -> Iterator[Any]:
    """Yield the parts of a data set that have a length; a mixture contains several data sets."""
    for value in vars(data).values():
        if isinstance(value, list):
            yield from (
                part for each in value if hasattr(each, "state_dict") for part in _sized_parts(each)
            )
        elif hasattr(value, "__getitem__") and hasattr(value, "num_rows"):
            yield value
