"""Tables fit the terminal: columns are dropped before a cell is cut, and no row wraps."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from trainyard.cli.table import Listing


def shown(listing: Listing, columns: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=columns).print(listing)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def listing() -> Listing:
    made = Listing("ID", "STEP", "AGE", "WHY", right=("STEP",), spare=("AGE",), elastic="WHY")
    made.add("abcdef", "7", "3m", "waits for two slots that others hold")
    made.add("ghi", "1,000", "12s", "")
    return made


def test_with_room_everything_is_shown() -> None:
    assert shown(listing(), 80) == [
        "ID       STEP  AGE  WHY",
        "abcdef      7  3m   waits for two slots that others hold",
        "ghi     1,000  12s",
    ]


def test_the_elastic_column_is_cut_before_another_is_left_out() -> None:
    assert shown(listing(), 34)[:2] == [
        "ID       STEP  AGE  WHY",
        "abcdef      7  3m   waits for two…",
    ]
    assert shown(listing(), 30)[:2] == ["ID       STEP  WHY", "abcdef      7  waits for two …"]


@pytest.mark.parametrize("columns", range(8, 60))
def test_no_line_is_longer_than_the_terminal_and_no_row_becomes_two(columns: int) -> None:
    lines = shown(listing(), columns)
    assert len(lines) == 3
    assert max(map(len, lines)) <= columns


def test_a_table_without_rows_has_its_heads() -> None:
    assert shown(Listing("A", "B"), 80) == ["A  B"]
