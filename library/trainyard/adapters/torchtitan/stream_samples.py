"""Yields the samples of one stream; rejects unsupported samples and empty epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

Sample = tuple[dict[str, Any], torch.Tensor]


class StreamSamples:
    """Yields the samples of a stream.

    A data set of chats drops each sample that is longer than a sequence. If it drops all samples
    of a stream, it starts one epoch after the other and never yields. This class ends that loop.

    Args:
        stream: data set of the stream; its `reloop`, if it has one, starts an epoch.
        row: row of the stream, for messages.
    """

    def __init__(self, stream: Any, row: int) -> None:
        self._stream, self._row = stream, row
        self._has_yielded = False
        for part in _parts(stream):
            kept: list[int | None] = [None]  # tokens in the buffer at the previous start
            part.reloop = partial(self._start_epoch, part, part.reloop, kept)

    def __iter__(self) -> Iterator[Sample]:
        """Yield each sample.

        Raises:
            ValueError: a sample has an unsupported form, or an epoch added neither a sample nor a
                token.
        """
        for sample in self._stream:
            if not _is_legal(sample):
                raise ValueError(
                    f"a sample of stream {self._row} is a {type(sample).__name__}: legal is a pair "
                    "of inputs with the key 'input' and labels; the multimodal loader of "
                    "torchtitan yields other samples"
                )
            self._has_yielded = True
            yield sample

    def _start_epoch(self, part: Any, reloop: Callable[[], None], kept: list[int | None]) -> None:
        tokens = len(getattr(part, "_inputs_buffer", ()))  # short documents fill it slowly
        if not self._has_yielded and tokens == kept[0]:
            raise ValueError(
                f"stream {self._row} found no sequence in a whole epoch: legal is data with at "
                "least one sample per stream that is no longer than training.seq_len"
            )
        kept[0], self._has_yielded = tokens, False
        reloop()


def _parts(stream: Any) -> Iterator[Any]:
    """Yield the data sets of a stream that start epochs; a mixture contains several."""
    if hasattr(stream, "reloop"):
        yield stream
    for value in vars(stream).values():
        if isinstance(value, list):
            yield from (each for each in value if hasattr(each, "reloop"))


def _is_legal(sample: Any) -> bool:
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        return False
    inputs, labels = sample
    has_input = isinstance(inputs, Mapping) and isinstance(inputs.get("input"), torch.Tensor)
    return has_input and isinstance(labels, torch.Tensor)
