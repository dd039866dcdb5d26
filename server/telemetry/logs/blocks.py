"""Packs lines of a rank's output into compressed blocks, and finds errors in lines."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_BYTES = 64 * 1024
"""Minimum size of every block except the last, in bytes; a page unpacks whole blocks."""

ERROR = re.compile(
    r"Traceback \(most recent call last\)|Error:|Exception:|CUDA error|NCCL error"
    r"|\bKilled\b|\bAborted\b|Segmentation fault|Fatal Python error|\bSIG(KILL|SEGV|ABRT|BUS)\b"
)
"""Pattern of a line that reports an error."""
PARTS_OF_ERRORS = (
    *("Traceback", "Error:", "Exception:", " error", "Killed", "Aborted"),
    *("Segmentation", "Fatal", "SIG"),
)
"""Parts of error lines: every match of `ERROR` contains one of these strings. A search for all of
the strings takes 10 % of the time of a search for `ERROR`."""


@dataclass(frozen=True)
class PackedBlock:
    """A block of consecutive whole lines."""

    first_line: int
    lines: int
    size: int
    """Size before compression, in bytes."""
    content: bytes

    @classmethod
    def of(cls, first_line: int, lines: Sequence[str]) -> PackedBlock:
        """Pack lines into a block; `first_line` is the number of the first line."""
        text = "".join(f"{line}\n" for line in lines).encode()
        # Each report unpacks and packs the last block again until it is full.
        level = 6 if len(text) >= BLOCK_BYTES else 1
        return cls(first_line, len(lines), len(text), zlib.compress(text, level))


def unpack_lines(content: bytes) -> list[str]:
    """Return the lines of a block."""
    return zlib.decompress(content).decode().split("\n")[:-1]


def blocks_of(first_line: int, lines: Sequence[str]) -> list[PackedBlock]:
    """Pack lines into blocks; `first_line` is the number of the first line."""
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
    """Return the index of the first line that looks like an error; None without one."""
    text = "\n".join(lines)
    if not any(part in text for part in PARTS_OF_ERRORS):
        return None
    return next((index for index, line in enumerate(lines) if ERROR.search(line)), None)
