"""The interface of readers: slices of files, parts of the input, and texts of documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from trainer.data.files.corpus import InputFile

PART_BYTES = 32 << 20
"""Bytes of text per part. Tokenizing one part takes some seconds: long enough to outweigh the
overhead of a part, and short enough to repeat.
"""
PART_SLICES = 4096
"""Maximum number of slices per part; it limits the size of the pickle that a process gets."""
PIECE_BYTES = 1 << 20
"""Bytes of text per call of the tokenizer."""


@dataclass(frozen=True)
class Text:
    """A text, or one piece of a long text."""

    data: bytes
    begins: bool = True
    """Whether the piece starts a document."""
    ends: bool = True
    """Whether the piece ends a document."""


@dataclass(frozen=True)
class Slice:
    """A range of a file that can be read separately."""

    file: InputFile
    start: int
    """First unit of the slice: a byte, a row group or a record batch."""
    stop: int
    """First unit after the slice."""
    size: int
    """Approximate size of the text, in bytes."""


Part = tuple[Slice, ...]


class Reader(Protocol):
    """Reads files of one format; it must be picklable."""

    def slices(self, file: InputFile) -> Iterator[Slice]:
        """Yield the slices of a file in order; together they cover the file.

        Raises:
            DataError: the file is unreadable or damaged.
        """
        ...

    def texts(self, part: Slice) -> Iterator[Text]:
        """Yield the non-empty texts of a slice.

        Raises:
            DataError: a text is invalid; the message names the file, the line or row, and its
                content.
        """
        ...


def grouped(slices: Iterable[Slice]) -> Iterator[Part]:
    """Group slices into parts of about `PART_BYTES`, and merge adjacent slices of a file."""
    part: list[Slice] = []
    size = 0
    for new in slices:
        if part and part[-1].file == new.file and part[-1].stop == new.start:
            part[-1] = replace(part[-1], stop=new.stop, size=part[-1].size + new.size)
        else:
            part.append(new)
        size += new.size
        if size >= PART_BYTES or len(part) >= PART_SLICES:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def gathered(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Group texts into lists of about `PIECE_BYTES`."""
    some: list[Text] = []
    size = 0
    for text in texts:
        some.append(text)
        size += len(text.data)
        if size >= PIECE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
