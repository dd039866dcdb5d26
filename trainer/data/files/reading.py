"""What every reader of an input speaks of: slices of files, parts of work, texts of documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from trainer.data.files.corpus import InputFile

PART_BYTES = 32 << 20
"""Text of one part of the work: long against starting it, short against doing it over."""
PART_SLICES = 4096
"""Most slices of one part: it travels to the process that reads it."""
PIECE_BYTES = 1 << 20
"""Text that is tokenized at once."""


@dataclass(frozen=True)
class Text:
    """A text, or a piece of a long one."""

    data: bytes
    begins: bool = True
    """Whether a document begins with it."""
    ends: bool = True
    """Whether a document ends with it."""


@dataclass(frozen=True)
class Slice:
    """Some of a file that can be read by itself."""

    file: InputFile
    start: int
    """The first unit: a byte, a row group or a record batch."""
    stop: int
    """The unit behind the last one."""
    size: int
    """About how many bytes of text."""


Part = tuple[Slice, ...]


class Reader(Protocol):
    """Reads one kind of file. It crosses to other processes."""

    def slices(self, file: InputFile) -> Iterator[Slice]:
        """Yield the slices of a file in order: together all of it, whoever reads them.

        Raises:
            DataError: the file is not what it should be.
        """
        ...

    def texts(self, part: Slice) -> Iterator[Text]:
        """Yield the texts of a slice, none of them empty.

        Raises:
            DataError: naming the file, the line or row, and what is there.
        """
        ...


def grouped(slices: Iterable[Slice]) -> Iterator[Part]:
    """Yield slices in parts of about `PART_BYTES`; neighbours of one file become one slice."""
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
    """Yield texts in lists of about `PIECE_BYTES`."""
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
