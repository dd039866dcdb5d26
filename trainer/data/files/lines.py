"""Readers of text files and JSON lines; large files are cut into slices after line breaks."""

from __future__ import annotations

import codecs
import gzip
import importlib
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from trainer.data.files import reader
from trainer.data.files.corpus import Corpus, InputFile, has_ending
from trainer.data.files.reader import Slice, Text

# Python 3.14 and later have this module; older versions need the package backports.zstd.
zstd = importlib.import_module(
    "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
)

BLOCK_BYTES = 1 << 20
LINE_BYTES = 256 << 20
"""Maximum size of a JSON line in bytes. The bytes, text, object and tokens of a line are in memory
at the same time.
"""
SHOWN_CHARACTERS = 60
SHOWN_NAMES = 20
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, zstd.ZstdError)
COMPRESSED = (".gz", ".zst")
MARK_BYTES = 4
OTHER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16's mark, which is its prefix
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True)
class TextFiles:
    """Reads text files; each file is one document, in any number of slices."""

    corpus: Corpus
    utf8: bool
    """Whether to reject files that are not valid UTF-8."""

    def slices(self, file: InputFile) -> Iterator[Slice]:
        """Yield byte ranges; a line belongs to the range that contains its first byte."""
        return _byte_ranges(file)

    def texts(self, part: Slice) -> Iterator[Text]:
        """Yield pieces of the document, cut after line breaks if there are any.

        A leading byte order mark is not part of the text; a file with only a mark is empty.
        """
        with self.corpus.open(part.file) as file:
            place, end = _line_start(file, part.start), _line_start(file, part.stop)
            begins = place == 0
            if begins:
                file.seek(0)
                place = self._mark(part.file, file.read(MARK_BYTES))
            file.seek(place)
            rest = b""
            while place + len(rest) < end:
                block = file.read(min(BLOCK_BYTES, end - place - len(rest)))
                if not block:
                    return  # the file was truncated; `Corpus.open` raises on exit
                rest += block
                cut = len(rest) if place + len(rest) == end else _cut(rest)
                self._check(part.file, rest[:cut], place)
                yield Text(rest[:cut], begins, place + cut == part.file.size)
                place, rest, begins = place + cut, rest[cut:], False

    def _mark(self, file: InputFile, head: bytes) -> int:
        """Return the length of a leading UTF-8 mark; refuse marks of other encodings."""
        if problem := mark_problem(head):
            self.corpus.refuse(file.path, problem)
        return len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0

    def _check(self, file: InputFile, text: bytes, place: int) -> None:
        nul = text.find(b"\0")
        if nul >= 0:
            self.corpus.refuse(
                file.path,
                f"holds a NUL byte at offset {place + nul}, so it is no text; "
                "legal are text files in UTF-8 or another encoding without NUL",
            )
        try:
            if self.utf8:
                text.decode()
        except UnicodeDecodeError as error:
            self.corpus.refuse(
                file.path,
                f"is no UTF-8 at offset {place + error.start}: byte {text[error.start]:#04x}; "
                "data.tokenizer='huggingface' needs UTF-8, 'byte' takes any encoding",
            )


@dataclass(frozen=True)
class JsonLines:
    """Reads JSON lines, plain or compressed; each line is an object with a text field."""

    corpus: Corpus
    text_field: str

    def slices(self, file: InputFile) -> Iterator[Slice]:
        """Yield byte ranges; a compressed file is one slice, because its reader cannot seek."""
        if has_ending(file.name, COMPRESSED):
            return iter([Slice(file, 0, file.size, file.size)])
        return _byte_ranges(file)

    def texts(self, part: Slice) -> Iterator[Text]:
        """Yield the text of each line; empty texts are omitted."""
        with self.corpus.open(part.file) as file:
            if has_ending(part.file.name, COMPRESSED):
                with self._decompressed(part.file, file) as lines:
                    yield from self._texts(part.file, lines, place=0, end=sys.maxsize)
            else:
                place, end = _line_start(file, part.start), _line_start(file, part.stop)
                file.seek(place)
                lines = io.BufferedReader(file, BLOCK_BYTES)
                yield from self._texts(part.file, lines, place=place, end=end)
                lines.detach()  # else its destructor closes the file too early

    @contextmanager
    def _decompressed(self, file: InputFile, opened: io.FileIO) -> Iterator[IO[bytes]]:
        gzipped = has_ending(file.name, ".gz")
        try:
            with gzip.GzipFile(fileobj=opened) if gzipped else zstd.ZstdFile(opened) as content:
                yield io.BufferedReader(content, BLOCK_BYTES)
        except BROKEN as error:
            self.corpus.refuse(file.path, f"is cut short or damaged: {error}")

    def _texts(self, file: InputFile, lines: IO[bytes], *, place: int, end: int) -> Iterator[Text]:
        first = place
        number = 0  # number of the line, counted from the first line read here
        while place < end and (line := lines.readline(LINE_BYTES + 1)):
            number += 1
            data = self._text(_Line(self.corpus, file, line, number, first, at_start=place == 0))
            place += len(line)
            if data:
                yield Text(data)

    def _text(self, line: _Line) -> bytes:
        if len(line.data) > LINE_BYTES:
            line.refuse(f"is longer than {LINE_BYTES >> 20} MiB")
        record = line.record()
        if record is None:
            return b""
        if self.text_field not in record:
            line.refuse(
                f"has no field {self.text_field!r} (data.text_field); its fields: {listed(record)}"
            )
        text = record[self.text_field]
        if not isinstance(text, str):
            line.refuse(
                f"holds no string in field {self.text_field!r} (data.text_field) but "
                f"{_excerpt(json.dumps(text))}"
            )
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            line.refuse(
                f"holds half a surrogate pair in field {self.text_field!r} at character "
                f"{error.start}, which is no text"
            )


@dataclass(frozen=True)
class _Line:
    """One line and its location in the file."""

    corpus: Corpus
    file: InputFile
    data: bytes
    number: int
    """Number of the line, counted from the first line of the slice."""
    slice_start: int
    """Offset at which the slice starts, in bytes."""
    at_start: bool
    """Whether the line is the first one of the file."""

    def record(self) -> dict[str, Any] | None:
        """Return the line's object; None for a blank line."""
        if self.at_start and (problem := mark_problem(self.data[:MARK_BYTES])):
            self.refuse(problem)
        try:
            text = self.data.decode("utf-8-sig" if self.at_start else "utf-8").strip()
            record = json.loads(text) if text else None
        except UnicodeDecodeError as error:
            self.refuse(f"is no UTF-8 at byte {error.start}: {_excerpt(repr(self.data))}")
        except (ValueError, RecursionError) as error:
            self.refuse(f"is no JSON ({error}): {_excerpt(text)!r}{self._one_a_line(text)}")
        if record is not None and not isinstance(record, dict):
            self.refuse(f"is no JSON object but {_excerpt(text)!r}{self._one_a_line(text)}")
        return record

    def _one_a_line(self, text: str) -> str:
        """Return a remedy if the file is a JSON document on several lines, otherwise empty text."""
        if not self.at_start or (text != "{" and not text.startswith("[")):
            return ""
        each = "." if text == "{" else ".[]"
        return f"; legal is one object a line, as of `jq -c '{each}'`"

    def refuse(self, what: str) -> NoReturn:
        """Raise DataError for this line, with file and line number."""
        number = self.number
        if self.slice_start:  # counted only on an error, because counting reads the file once
            with self.corpus.open(self.file) as file:
                number += _line_breaks(file, self.slice_start)
        self.corpus.refuse(self.file.path, f"line {number} {what}")


def mark_problem(head: bytes) -> str | None:
    """Return an error text if a file starts with the byte order mark of UTF-16 or UTF-32."""
    name = next((name for mark, name in OTHER_MARKS if head.startswith(mark)), None)
    if name is None:
        return None
    return (
        f"begins with the byte order mark of {name}; legal is UTF-8, as of "
        f"`iconv -f {name} -t UTF-8`"
    )


def _byte_ranges(file: InputFile) -> Iterator[Slice]:
    size = reader.PART_BYTES
    for start in range(0, file.size, size):
        stop = min(start + size, file.size)
        yield Slice(file, start, stop, stop - start)


def _line_start(file: io.FileIO, place: int) -> int:
    """Return the start of the first line at or after `place`, or else the file's size."""
    if place == 0:
        return 0
    place = file.seek(place - 1)
    while block := file.read(64 << 10):
        found = block.find(b"\n")
        if found >= 0:
            return place + found + 1
        place += len(block)
    return place


def _cut(data: bytes) -> int:
    """Return where to cut: after the last line break or, without one, between two characters."""
    cut = data.rfind(b"\n") + 1
    if cut:
        return cut
    for back in range(1, min(4, len(data))):
        if data[-back] & 0xC0 != 0x80:  # not a continuation byte in UTF-8
            return len(data) - back
    return len(data)


def _line_breaks(file: io.FileIO, end: int) -> int:
    file.seek(0)
    count = 0
    while end > 0 and (block := file.read(min(BLOCK_BYTES, end))):
        count += block.count(b"\n")
        end -= len(block)
    return count


def listed(names: Iterable[str]) -> str:
    """Return names for a message: the first `SHOWN_NAMES`, and the number of further names."""
    every = [repr(_excerpt(name)) for name in names]
    more = len(every) - SHOWN_NAMES
    return ", ".join(every[:SHOWN_NAMES]) + (f" and {more:,} more" if more > 0 else "") or "none"


def _excerpt(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
