"""Output of a rank as text lines in compressed blocks: cutting, packing, looking for errors."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_BYTES = 64 * 1024
"""A block takes lines until it holds so many bytes; only the last one holds fewer."""
LINE_BYTES = 64 * 1024
"""A longer line is cut, and marked as cut."""

ERROR = re.compile(
    r"Traceback \(most recent call last\)|Error:|Exception:|CUDA error|NCCL error"
    r"|\bKilled\b|\bAborted\b|Segmentation fault|Fatal Python error|\bSIG(KILL|SEGV|ABRT|BUS)\b"
)
"""What the first line of trouble looks like."""


@dataclass(frozen=True)
class Partial:
    """The start of a line whose end has not come yet."""

    kept: bytes = b""
    """Its first `LINE_BYTES` bytes."""
    size: int = 0
    """All bytes that came of it."""


@dataclass(frozen=True)
class PackedBlock:
    """Whole lines in a row."""

    first_line: int
    lines: int
    size: int
    """Bytes before compression."""
    content: bytes

    @classmethod
    def of(cls, first_line: int, lines: Sequence[str]) -> PackedBlock:
        """Pack lines."""
        text = "".join(f"{line}\n" for line in lines).encode()
        return cls(first_line, len(lines), len(text), zlib.compress(text))

    def unpack(self) -> list[str]:
        """Return the lines."""
        return unpack_lines(self.content)


def unpack_lines(content: bytes) -> list[str]:
    """Return the lines of a block."""
    return zlib.decompress(content).decode().split("\n")[:-1]


def split(partial: Partial, content: bytes) -> tuple[list[str], Partial]:
    """Return the lines that `content` completes, and the start of the next one.

    Invalid UTF-8 is replaced, and so is a line break of two characters; what a long line has
    beyond `LINE_BYTES` is dropped and counted in its mark.
    """
    *ends, rest = content.split(b"\n")
    if not ends:
        return [], _grown(partial, rest)
    first = _grown(partial, ends[0])
    lines = [_text(first.kept, first.size), *(_text(raw, len(raw)) for raw in ends[1:])]
    return lines, _grown(Partial(), rest)


def closed(partial: Partial) -> list[str]:
    """Return the last line of a file that ends without a line break."""
    return [_text(partial.kept, partial.size)] if partial.size else []


def blocks_of(first_line: int, lines: Sequence[str]) -> list[PackedBlock]:
    """Cut lines into blocks, the first of which begins at line `first_line`."""
    blocks = []
    start = size = 0
    for index, line in enumerate(lines, start=1):
        size += len(line) + 1
        if size >= BLOCK_BYTES:
            blocks.append(PackedBlock.of(first_line + start, lines[start:index]))
            start, size = index, 0
    if start < len(lines):
        blocks.append(PackedBlock.of(first_line + start, lines[start:]))
    return blocks


def first_error(lines: Sequence[str]) -> int | None:
    """Return the index of the first line that looks like an error."""
    return next((index for index, line in enumerate(lines) if ERROR.search(line)), None)


def _grown(partial: Partial, more: bytes) -> Partial:
    room = LINE_BYTES - len(partial.kept)
    return Partial(partial.kept + more[: max(room, 0)], partial.size + len(more))


def _text(raw: bytes, size: int) -> str:
    text = raw[:LINE_BYTES].decode(errors="replace")
    if size > LINE_BYTES:
        return f"{text} [cut: {size - LINE_BYTES} more bytes]"
    return text.removesuffix("\r")
