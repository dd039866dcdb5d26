"""Converts the output of a process to rows of text, as a terminal does (docs/metrics-and-logs.md).

A progress bar returns to the start of its row (`\\r`) and moves within the row; several bars move
the cursor between their rows. Only the text that remains visible is kept.
"""

from __future__ import annotations

import re
from unicodedata import category, east_asian_width

ROW_BYTES = 64 * 1024
"""Maximum size of a row in bytes; a longer row continues in the next one, as in a terminal."""
MAX_ROWS = 100
"""Maximum number of rows that may still change."""
MAX_COLUMNS = 1000
"""Last column to which the cursor can move if the text of the row ends before it."""
LONGEST_ESCAPE = 256
LONGEST_CELL = 8
"""Maximum number of characters in one cell: a letter and its marks."""

_TOKEN = re.compile(
    r"(?P<text>[^\n\r\b\x1b]+)"
    r"|\x1b\[(?P<counts>[0-9;]{0,12})(?P<kind>[A-HJKXdfsu`])"
    r"|\x1b(?P<saved>[78])"
    r"|\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[(-/][0-~]|[0-Z\\^-~])"
    r"|(?P<control>[\n\r\b])"
    r"|\x1b(?:\[[0-?]*[ -/]*)?"
)
"""Tokens of output: text, moves, sequences without text such as colours and titles, and an
incomplete sequence at the end."""
_COLOURS = re.compile(rb"\x1b\[[0-9;:]*m")
_HELD = re.compile(
    rb"(?:\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*\x1b?|[(-/])?"
    rb"|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)
"""An incomplete escape sequence or character at the end of the output received so far."""


def split_rows(former: bytes, more: bytes) -> tuple[list[str], bytes]:
    """Return the completed rows, and the state of the rows that may still change.

    The result does not depend on where the output is cut, except for rows longer than `ROW_BYTES`
    and escape sequences longer than `LONGEST_ESCAPE`.

    Args:
        former: state that the previous call returned; empty for the first call.
        more: the next part of the output.
    """
    content = former + more
    plain = _COLOURS.sub(b"", content) if b"\x1b" in content else content
    if b"\x1b" in plain or b"\b" in plain:
        screen = _Screen()
        found = _HELD.search(content[-LONGEST_ESCAPE:])
        held = found[0] if found else b""
        screen.feed(content[: len(content) - len(held)])
        screen.leave_full_rows()
        return screen.complete, screen.state() + held
    *ends, rest = plain.split(b"\n")
    if b"\r" in plain or len(max(ends, key=len, default=b"")) > ROW_BYTES:
        rows = [row for end in ends for row in _wrapped(_after_return(end).rstrip(b"\r"))]
    else:  # most output takes this path, which is ten times faster
        rows = [end.decode(errors="replace") for end in ends]
    full, rest = _full(_after_return(rest))
    return rows + full, rest


def last_rows(former: bytes) -> list[str]:
    """Return the text of the incomplete rows at the end of the output."""
    screen = _Screen()
    screen.feed(_without_held_escape(former))
    return screen.rows()


def shown_text(output: bytes) -> str:
    """Return output as text, as a terminal would show it."""
    rows, former = split_rows(b"", output)
    return "\n".join([*rows, *last_rows(former)])


class _Row:
    """A row of cells; a cell has a character with its marks, or is half of a wide character."""

    def __init__(self) -> None:
        self.cells: list[str] = []
        self.column = 0
        self.is_returned = False
        """Whether the next text replaces the whole row, as after `\\r`."""

    def write(self, text: str) -> None:
        """Write text at the cursor."""
        if self.is_returned:
            self.clear()
        elif self.column > len(self.cells):
            self.cells += " " * (self.column - len(self.cells))
        cells = list(text) if text.isascii() else self._cells(text)
        end = self.column + len(cells)
        self._halve(self.column)
        self._halve(end)
        self.cells[self.column : end] = cells
        self.column = end

    def move_to(self, column: int) -> None:
        """Move the cursor within the row, up to `MAX_COLUMNS` or to the end of a longer text."""
        most = max(len(self.cells), self.column, MAX_COLUMNS)
        self.column, self.is_returned = min(max(column, 0), most), False

    def return_to_start(self) -> None:
        """Move the cursor to the first column."""
        self.column, self.is_returned = 0, True

    def clear(self) -> None:
        """Remove all text of the row."""
        self.cells, self.column, self.is_returned = [], 0, False

    def clear_rest(self) -> None:
        """Remove the text from the cursor to the end of the row."""
        self._halve(self.column)
        del self.cells[self.column :]

    def erase(self, count: int) -> None:
        """Replace up to `count` characters from the cursor on with spaces."""
        end = min(self.column + min(count, MAX_COLUMNS), len(self.cells))
        if end > self.column:
            self._halve(self.column)
            self._halve(end)
            self.cells[self.column : end] = " " * (end - self.column)

    def text(self) -> bytes:
        """Return the text of the row as bytes."""
        return "".join(self.cells).encode(errors="surrogateescape")

    def leave_full(self) -> list[str]:
        """Cut full rows off the start of a row that is too long; return the full rows."""
        rows, rest = _full(self.text())
        if rows:
            self.clear()
            self.write(rest.decode(errors="surrogateescape"))
        return rows

    def _cells(self, text: str) -> list[str]:
        """Return the cells of a text; marks at its start join the cell before the cursor."""
        cells: list[str] = []
        before = self.cells[self.column - 1] if 0 < self.column <= len(self.cells) else ""
        for character in text:
            if category(character) in ("Mn", "Me", "Cf"):
                if cells and 0 < len(cells[-1]) < LONGEST_CELL:
                    cells[-1] += character
                    continue
                if not cells and 0 < len(before) < LONGEST_CELL:
                    before += character
                    self.cells[self.column - 1] = before
                    continue
            cells.append(character)
            if east_asian_width(character) in ("W", "F"):
                cells.append("")
        return cells

    def _halve(self, column: int) -> None:
        """Replace a wide character with spaces if one of its halves is overwritten."""
        if 0 < column < len(self.cells) and not self.cells[column]:
            self.cells[column - 1 : column + 1] = "  "


class _Screen:
    """The window of rows that may still change: the bottom row, and rows the cursor moved to.

    A row that has left the window is complete. If the cursor moves above the window, it finds empty
    rows, and text written there makes a new row. All rows leave the window when the bottom row
    ends.
    """

    def __init__(self) -> None:
        self.complete: list[str] = []
        self._window = [_Row()]
        self._at = 0
        self._home: int | None = None
        """Number of the window's first row, for moves to numbered rows; None before such a move."""
        self._saved: tuple[_Row, int] | None = None

    def feed(self, content: bytes) -> None:
        """Process a part of the output."""
        for token in _TOKEN.finditer(content.decode(errors="surrogateescape")):
            if (text := token["text"]) is not None:
                self._write(text)
            elif (control := token["control"]) is not None:
                self._control(control)
            elif (saved := token["saved"]) is not None:
                self._save() if saved == "7" else self._restore()
            elif (kind := token["kind"]) is not None:
                self._move(kind, [int(count or 0) for count in token["counts"].split(";")])

    def leave_full_rows(self) -> None:
        """Move rows to `complete` if the rows of the window exceed `ROW_BYTES` in total."""
        if len(self._window) > 1 and sum(len(row.text()) for row in self._window) > ROW_BYTES:
            self._leave()
        self.complete += self._row.leave_full()

    def rows(self) -> list[str]:
        """Return the rows of the window that have text."""
        texts = [row.text() for row in self._window]
        return [row for text in texts if text for row in _wrapped(text)]

    def state(self) -> bytes:
        """Return output that reproduces the rows of the window and the cursor."""
        up = len(self._window) - 1
        parts = [b"\x1b[%dA" % up if up else b""]
        if self._home is not None:
            parts.append(b"\x1b[%dH" % self._home)
        parts.append(b"\x1b[B".join(map(self._state_of, self._window)))
        if self._at < up:
            parts.append(b"\x1b[%dA" % (up - self._at))
        row = self._row
        if row.is_returned:
            parts.append(b"\r")
        elif self._at < up or row.column != len(row.cells) or self._holds_saved(row):
            # A backspace at column 0 cancels the effect of the return on the next text.
            parts.append(b"\x1b[%dG" % (row.column + 1) if row.column else b"\r\b")
        return b"".join(parts)

    @property
    def _row(self) -> _Row:
        return self._window[self._at]

    def _holds_saved(self, row: _Row) -> bool:
        return self._saved is not None and self._saved[0] is row

    def _state_of(self, row: _Row) -> bytes:
        if self._saved is None or self._saved[0] is not row:
            return row.text()
        return row.text() + b"\x1b[%dG\x1b7" % (self._saved[1] + 1)

    def _write(self, text: str) -> None:
        for at in range(0, len(text), ROW_BYTES):
            row = self._row
            row.write(text[at : at + ROW_BYTES])
            if len(row.cells) > ROW_BYTES and row.column == len(row.cells):
                self.complete += row.leave_full()

    def _control(self, control: str) -> None:
        if control == "\r":
            self._row.return_to_start()
        elif control == "\b":
            self._row.move_to(self._row.column - 1)
        elif self._at + 1 < len(self._window):
            self._at += 1
            self._row.return_to_start()
        else:
            self._leave()

    def _leave(self) -> None:
        """Move the rows with text, or a single empty row, to `complete`; start a new row."""
        rows = self.rows()
        self.complete += rows if rows or len(self._window) > 1 else [""]
        self._window, self._at, self._home = [_Row()], 0, None

    def _move(self, kind: str, counts: list[int]) -> None:
        row, count = self._row, counts[0] or 1
        if kind in "ABEF":
            self._go(-count if kind in "AF" else count, to_start=kind in "EF")
        elif kind in "CD":
            row.move_to(row.column + (count if kind == "C" else -count))
        elif kind in "G`":
            self._to_column(count)
        elif kind in "Hfd":
            self._go_to(count)
            if kind != "d":
                self._to_column((counts[1] if len(counts) > 1 else 0) or 1)
        elif kind in "su":
            self._save() if kind == "s" else self._restore()
        else:
            self._clear(kind, counts[0])

    def _clear(self, kind: str, count: int) -> None:
        """Clear a part of the row or of the screen; for the start of a row, clear the whole row."""
        if kind == "X":
            self._row.erase(count or 1)
        elif count == 0:
            self._row.clear_rest()
        else:
            self._row.clear()
        if kind == "J":
            first, end = (0, self._at) if count else (0, 0)
            below = [] if count == 1 else self._window[self._at + 1 :]
            for row in [*self._window[first:end], *below]:
                row.clear()

    def _to_column(self, number: int) -> None:
        if number == 1:
            self._row.return_to_start()
        else:
            self._row.move_to(number - 1)

    def _go(self, rows: int, *, to_start: bool = False) -> None:
        """Move the cursor down or up; rows above the window are empty."""
        column = self._row.column
        missing = -(self._at + rows) if self._home is None else 0
        missing = max(0, min(missing, MAX_ROWS - len(self._window)))
        self._window[:0] = [_Row() for _ in range(missing)]
        at = self._at + missing + rows
        self._at = min(max(at, 0), len(self._window) - 1)
        if to_start:
            self._row.return_to_start()
        else:
            self._row.move_to(column if self._row.cells else 0)

    def _go_to(self, number: int) -> None:
        """Move the cursor to a numbered row of the screen; only rows in the window are known."""
        if self._home is None:
            if len(self._window) == 1:
                self._window.insert(0, _Row())
            self._home = number
        missing = max(0, min(self._home - number, MAX_ROWS - len(self._window)))
        self._window[:0] = [_Row() for _ in range(missing)]
        self._home -= missing
        beyond = number - self._home + 1 - len(self._window)
        beyond = max(0, min(beyond, MAX_ROWS - len(self._window)))
        self._window += [_Row() for _ in range(beyond)]
        self._at = min(max(number - self._home, 0), len(self._window) - 1)

    def _save(self) -> None:
        self._saved = self._row, self._row.column

    def _restore(self) -> None:
        """Move the cursor to its saved position, or to a new row if the saved row is complete."""
        for at, row in enumerate(self._window):
            if self._saved is not None and row is self._saved[0]:
                self._at = at
                row.move_to(self._saved[1])
                return
        self._go_to(1 if self._home is None else self._home)
        self._row.return_to_start()


def _without_held_escape(output: bytes) -> bytes:
    found = _HELD.search(output[-LONGEST_ESCAPE:])
    held = found[0] if found else b""
    return output[: len(output) - len(held)] if held.startswith(b"\x1b") else output


def _after_return(row: bytes) -> bytes:
    """Return the text after the last return, or the text before it if no text follows."""
    if b"\r" not in row:
        return row
    text, _, last = row.rpartition(b"\r")
    if last:
        return last
    text = text.rstrip(b"\r").rpartition(b"\r")[2]
    return text and text + b"\r"


def _full(row: bytes) -> tuple[list[str], bytes]:
    """Return full rows from the start of a row that is too long, and the rest of the row."""
    rows = []
    while len(row) > ROW_BYTES:
        cut = ROW_BYTES
        while cut > ROW_BYTES - 4 and row[cut] & 0xC0 == 0x80:  # inside a character
            cut -= 1
        rows.append(row[:cut].decode(errors="replace"))
        row = row[cut:]
    return rows, row


def _wrapped(row: bytes) -> list[str]:
    full, rest = _full(row)
    return [*full, rest.decode(errors="replace")]
