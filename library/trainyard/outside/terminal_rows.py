"""Output of a process as rows of text, as a terminal would show it (docs/metrics-and-logs.md).

A progress bar returns to the start of its row (`\\r`) or takes characters back (`\\b`), and bars
below each other move the cursor up. Only what is in sight at last becomes text.
"""

from __future__ import annotations

import re

ROW_BYTES = 64 * 1024
"""Longest row; a longer one continues on the next, as it does in a terminal."""
MOST_ROWS_UP = 100
LONGEST_ESCAPE = 256

_MOVE = re.compile(rb"\n|\x1b\[(\d{0,4})([ABEF])")
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*\x1b?)?\Z")
"""The start of an escape sequence at the end of what has come."""
_NO_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*)?(?=\x1b)")
_TO_START = re.compile(rb"\x1b\[[01]?G")
_CLEARED = re.compile(rb"\x1b\[[12][JK]|\r\x1b\[0?[JK]")
_OTHER = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-FHIL-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[(-/][0-~]|[0-Z\\^-~])"
)
"""Colours, titles and whatever else leaves no text; not what clears a row or moves in it."""
_REST = re.compile(rb"\x1b(?:\[0?[JK])?")
_BACKSPACES = re.compile(rb"(\x08+)")


def split_rows(former: bytes, more: bytes) -> tuple[list[str], bytes]:
    """Return the rows that output completes, and what is known of those that may still change.

    The result does not depend on where the output is cut, but for rows of more than `ROW_BYTES`.

    Args:
        former: what the last call returned of the output before; empty at first.
        more: the output that follows.
    """
    content = former + more
    if b"\x1b" in content:
        return _Screen().feed(content)
    *ends, rest = content.split(b"\n")
    if b"\r" in content or b"\b" in content or len(max(ends, key=len, default=b"")) > ROW_BYTES:
        rows = [row for end in ends for row in _wrapped(_reduced(end))]
    else:  # most output, ten times faster
        rows = [end.decode(errors="replace") for end in ends]
    full, rest = _full(_reduced(rest))
    return rows + full, rest


def last_rows(former: bytes) -> list[str]:
    """Return the rows that were not complete at the end of the output."""
    if not former:
        return []
    screen = _Screen()
    screen.feed(_UNFINISHED.sub(b"", former))
    rows = (row for row in (screen.upper, screen.bottom) if row.content)
    return [text for row in rows for text in row.end()]


def shown_text(output: bytes) -> str:
    """Return output as a terminal would show it."""
    rows, former = split_rows(b"", output)
    return "\n".join([*rows, *last_rows(former)])


class _Row:
    """A row that grows; it is reduced from time to time, so that many small parts cost little."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._new = 0

    def write(self, text: bytes) -> list[str]:
        """Add text; return rows that are full."""
        self._parts.append(text)
        self._new += len(text)
        return self.reduce() if self._new > ROW_BYTES else []

    def reduce(self) -> list[str]:
        """Forget what is out of sight; return rows that are full."""
        rows, rest = _full(_reduced(b"".join(self._parts)))
        self._parts, self._new = [rest] if rest else [], 0
        return rows

    @property
    def content(self) -> bytes:
        """What is known of it."""
        return b"".join(self._parts)

    def end(self) -> list[str]:
        """Return the row, in as many rows as it takes, and begin another."""
        rows = _wrapped(_reduced(self.content))
        self._parts, self._new = [], 0
        return rows


class _Screen:
    """The row at the bottom, and the cursor, which may be in a row above that is complete.

    A complete row does not change: text that comes there is a row of its own once it ends.
    """

    def __init__(self) -> None:
        self.bottom, self.upper = _Row(), _Row()
        self._up = 0
        self._rows: list[str] = []

    def feed(self, content: bytes) -> tuple[list[str], bytes]:
        """Take all output so far, of which nothing else is known."""
        content = _NO_ESCAPE.sub(b"", content)
        found = _UNFINISHED.search(content[-LONGEST_ESCAPE:])
        held = found[0] if found else b""
        content = content[: len(content) - len(held)]
        at = 0
        for move in _MOVE.finditer(content):
            self._write(content[at : move.start()])
            self._move(move)
            at = move.end()
        self._write(content[at:])
        for row in (self.upper, self.bottom):
            self._rows += row.reduce()
        up = b"\x1b[%dA" % self._up if self._up else b""
        return self._rows, self.bottom.content + up + self.upper.content + held

    def _write(self, text: bytes) -> None:
        if text:
            self._rows += (self.upper if self._up else self.bottom).write(text)

    def _move(self, move: re.Match[bytes]) -> None:
        count = min(int(move[1] or b"1") or 1, MOST_ROWS_UP)
        if move[0] == b"\n":
            self._down(1)
        elif move[2] in b"AF":
            self._up = min(self._up + count, MOST_ROWS_UP)
            self.upper = _Row()
        elif self._up:
            self._down(count)

    def _down(self, count: int) -> None:
        if not self._up:
            self._rows += self.bottom.end()
            return
        self._rows += self.upper.reduce()
        if self.upper.content:
            self._rows += self.upper.end()
        self._up = max(self._up - count, 0)


def _reduced(row: bytes) -> bytes:
    """Return the part of a row that is in sight, and the moves at its end, which may matter yet."""
    if b"\x1b" in row:
        row = _TO_START.sub(b"\r", _OTHER.sub(b"", row))
        row = _REST.sub(b"", _CLEARED.split(row)[-1])
    if b"\r" in row:
        text, _, last = row.rpartition(b"\r")
        if last:
            return _without_taken_back(last)
        text = text.rstrip(b"\r").rpartition(b"\r")[2]
        text = _without_taken_back(text).rstrip(b"\b")
        return text and text + b"\r"
    return _without_taken_back(row)


def _without_taken_back(text: bytes) -> bytes:
    """Return text without the characters that others have replaced after backspaces."""
    if b"\b" not in text:
        return text
    done: list[str] = []
    taken = 0
    for part in _BACKSPACES.split(text):
        if part.startswith(b"\b"):
            taken = min(taken + len(part), len(done))
        elif part:
            del done[len(done) - taken :]
            # A byte that is no UTF-8 is a character of its own.
            done += part.decode(errors="surrogateescape")
            taken = 0
    return "".join(done).encode(errors="surrogateescape") + b"\b" * taken


def _full(row: bytes) -> tuple[list[str], bytes]:
    """Return the full rows at the start of a row that is too long, and the rest of it."""
    rows = []
    while len(row) > ROW_BYTES:
        cut = ROW_BYTES
        while cut > ROW_BYTES - 4 and row[cut] & 0xC0 == 0x80:  # within a character
            cut -= 1
        rows.append(row[:cut].decode(errors="replace"))
        row = row[cut:]
    return rows, row


def _wrapped(row: bytes) -> list[str]:
    full, rest = _full(row.rstrip(b"\r\b"))
    return [*full, rest.decode(errors="replace")]
