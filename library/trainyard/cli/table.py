"""A table that fits the terminal: it drops columns and cuts cells, but never wraps text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 2
"""Number of blanks between two columns."""
LEAST = 12
"""Default minimum width of the elastic column; other columns are dropped to keep this width."""


class Listing:
    """A table with headings.

    Args:
        columns: headings, from left to right.
        right: headings of the right-aligned columns, which contain numbers.
        spare: headings of the columns that may be dropped, in the order of dropping.
        elastic: heading of the column that is cut first; then the widest column is cut.
        least: minimum width of the elastic column; spare columns are dropped to keep this width.
    """

    def __init__(
        self,
        *columns: str,
        right: Collection[str] = (),
        spare: Sequence[str] = (),
        elastic: str | None = None,
        least: int = LEAST,
    ) -> None:
        self._columns = columns
        self._right = frozenset(right)
        self._spare = spare
        self._elastic = elastic
        self._least = least
        self._rows: list[tuple[list[Text], str]] = []

    def add(self, *cells: str | Text, style: str = "") -> None:
        """Add a row."""
        assert len(cells) == len(self._columns), "a cell for each column"
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append((texts, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a table of the columns that fit."""
        widths = self._fitting(options.max_width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        for name, width in widths.items():
            justify: Literal["left", "right"] = "right" if name in self._right else "left"
            table.add_column(
                name, no_wrap=True, overflow="ellipsis", justify=justify, min_width=width,
                max_width=width,
            )  # fmt: skip
        shown = [index for index, name in enumerate(self._columns) if name in widths]
        for cells, style in self._rows:
            table.add_row(*(cells[index] for index in shown), style=style)
        yield table

    def _fitting(self, available: int) -> dict[str, int]:
        """Return the columns to show, with their widths."""
        widths = {
            name: max([len(name), *(cells[index].cell_len for cells, _ in self._rows)])
            for index, name in enumerate(self._columns)
        }
        least = dict(widths)
        if self._elastic is not None:
            least[self._elastic] = min(widths[self._elastic], self._least)
        for name in self._spare:
            if _total(least) <= available:
                break
            del least[name], widths[name]
        widest = max(widths, key=lambda name: widths[name])
        for name in (self._elastic or widest, widest):
            excess = _total(widths) - available
            if excess > 0 and name in widths:
                widths[name] = max(widths[name] - excess, 1)
        return widths


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)
