"""Rows of output in a terminal's view: bars, backspaces, escape sequences, long rows."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.outside.terminal_rows import ROW_BYTES, last_rows, shown_text, split_rows


def rows_of(*parts: bytes) -> tuple[list[str], list[str]]:
    """Return the complete rows of output that arrives in parts, and the rows at its end."""
    rows, former = [], b""
    for part in parts:
        found, former = split_rows(former, part)
        rows += found
    return rows, last_rows(former)


@pytest.mark.parametrize(
    ("output", "rows", "last"),
    [
        (b"one\ntwo\r\n", ["one", "two"], []),
        (b"one\n\ntwo", ["one", ""], ["two"]),
        # Bars: the text after the last return, also if a return ends each of them.
        (b"\r10%\r20%", [], ["20%"]),
        (b"\r10%\r20%\nafter\n", ["20%", "after"], []),
        (b"10%\r20%\r", [], ["20%"]),
        (b"10%\r20%\r\n", ["20%"], []),
        (b"10%\r\r\n", ["10%"], []),
        # What follows on the row is kept.
        (b"\r10%\r20% Traceback (most recent call last):\n  x\n", None, []),
        (b"10%\rValueError: no\n", ["ValueError: no"], []),
        (b"\r50%\r     \rdone\n", ["done"], []),
        # Characters erased by backspaces.
        (b"10%\b\b\b20%\b\b\b", [], ["20%"]),
        (b"|\b/\b-\b\\\bdone\n", ["done"], []),
        ("ö\bx\b\b\b\by\n".encode(), ["y"], []),
        # Cleared rows, and sequences without text.
        (b"old\x1b[2K\rnew\n", ["new"], []),
        (b"old\r\x1b[Knew", [], ["new"]),
        (b"old\x1b[1Gnew\x1b[K\n", ["new"], []),
        (b"old\r\x1b[K\n", [""], []),
        (b"bar\r\x1b[0m\n", ["bar"], []),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b[?25lend\n", ["red end"], []),
        (b"text\x1b[3", [], ["text"]),
        # Bars below each other: the bottom one changes; each of the others has a row at its end.
        (b"\rA 1\n\rB 1\x1b[A\n\rB 2\x1b[A\n\rB 3\x1b[A", ["A 1"], ["B 3"]),
        (
            b"\rA 1\n\rB 1\x1b[A\n\rB 2\x1b[A\rA 2\n\nError: no\n",
            ["A 1", "A 2", "B 2", "Error: no"],
            [],
        ),
        (b"\x1b[A\x1b[5Afirst\nsecond", [], ["first", "second"]),
        # Bars that move within their row.
        (b"10%\x1b[3D20%\x1b[3D30%", [], ["30%"]),
        (b"10%\x1b[99D20%\n", ["20%"], []),
        (b"a: 10% of x\x1b[3G 20%\x1b[20G|\n", ["a: 20% of x        |"], []),
        (b"a: 10%\r\x1b[2C 20%\n", ["a: 20%"], []),
        (b"a: \x1b7 10%\x1b8 20%\x1b8 30% done\n", ["a:  30% done"], []),
        (b"a: \x1b[s 10%\x1b[u 20%\n", ["a:  20%"], []),
        (b"abc\x1b[2D\x1b[Kd\n", ["ad"], []),
        (b"abcd\x1b[3D\x1b[2Xx\n", ["ax d"], []),
        (b"abc\b\bx\n", ["axc"], []),
        ("损失 10%\x1b[6G20%\n".encode(), ["损失 20%"], []),
        ("损失\x1b[2Dx\n".encode(), ["损x "], []),
        ("损失\x1b[Dx\n".encode(), ["损 x"], []),
        ("损失\x1b[2Gx\n".encode(), [" x失"], []),
        ("e\u0301\bx\n".encode(), ["x"], []),
        # Bars at a position of the screen: the bottom row is kept.
        (b"\x1b[H10%\x1b[H20%\x1b[1;1H30%\nError: no\n", ["30%", "Error: no"], []),
        (b"\x1b[H\x1b[2J\x1b[3Jone\ntwo\nthree\n", ["one", "two", "three"], []),
        (
            b"log 1\n\x1b7\x1b[24;0f10%\x1b8log 2\n\x1b7\x1b[24;0f20%\x1b8log",
            ["log 1", "10%", "log 2"],
            ["20%", "log"],
        ),
        (b"\x1b[1;1HA 1\x1b[2;1HB 1\x1b[1;1HA 2\x1b[2;1HB 2\n", ["A 2", "B 2"], []),
        (b"\x1b[2;5HB 1\x1b[1;1HA 1\x1b[2;5HB 2\n\n", ["A 1", "    B 2"], []),
        (b"\x1b7A 1\nB 1\x1b8A 2\nB 2\n", ["A 1", "A 2", "B 2"], []),
        # A redrawn frame of rows: its first and its last state.
        (
            b"A 1\nB 1\nC 1" + b"\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2KA 2\nB 2\nC 2" * 9 + b"\n",
            ["A 1", "B 1", "A 2", "B 2", "C 2"],
            [],
        ),
        (b"A 1\nB 1\n\x1b[2F\x1b[Jall\n\n\n", ["A 1", "B 1", "all"], []),
        (b"one\x1b[4mtwo\x1b]8;;http://a\x1b\\three\x1b(B\x1b=\n", ["onetwothree"], []),
    ],
)
def test_rows_are_what_a_terminal_shows(
    output: bytes, rows: list[str] | None, last: list[str]
) -> None:
    wanted = ["20% Traceback (most recent call last):", "  x"] if rows is None else rows
    assert rows_of(output) == (wanted, last)
    for size in (1, 2, 3, 5):
        parts = [output[at : at + size] for at in range(0, len(output), size)]
        assert rows_of(*parts) == (wanted, last), "wherever it is cut"
    assert shown_text(output) == "\n".join([*wanted, *last])


PIECES = [
    *(b"a", b"bc", b"\n", b"\r", b"\b", "ö".encode(), b"\xff", b"\0", b"\x1b[A", b"\x1b[2B"),
    *(b"\x1b[2K", b"\x1b[K", b"\x1b[G", b"\x1b[1;31m", b"\x1b[?25l", b"\x1b]0;title\x07"),
    *(b"\x1b[3D", b"\x1b[2C", b"\x1b[4G", b"\x1b7", b"\x1b8", b"\x1b[H", b"\x1b[3;2H", b"\x1b[J"),
    *(b"\x1b[2X", b"\x1b[2d", b"\x1b[F", b"\x1b[2J", "失".encode(), "\u0301".encode()),
]


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=30),
    cuts=st.lists(st.integers(0, 120), max_size=8),
)
def test_rows_do_not_depend_on_where_output_is_cut(pieces: list[bytes], cuts: list[int]) -> None:
    output = b"".join(pieces)
    edges = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    assert rows_of(*(output[a:b] for a, b in pairwise(edges))) == rows_of(output)


@given(output=st.binary(max_size=400))
def test_output_without_moves_is_kept_as_it_is(output: bytes) -> None:
    for moves in (b"\r", b"\b", b"\x1b"):
        output = output.replace(moves, b"\n")
    *rows, last = (row.decode(errors="replace") for row in output.split(b"\n"))
    assert rows_of(output) == (rows, [last] if last else [])


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_long_row_goes_on_in_the_next_and_loses_nothing(size: int) -> None:
    output = ("ö" * 150_000 + " Error: no\n").encode()
    rows, last = rows_of(*(output[at : at + size] for at in range(0, len(output), size)))
    assert "".join(rows) == "ö" * 150_000 + " Error: no"
    assert max(len(row.encode()) for row in rows) <= ROW_BYTES
    assert (len(rows), last) == (5, [])


def test_a_bar_of_a_day_keeps_one_row() -> None:
    """At 10 Hz: 80 MB of output; the state between two reports is the last bar."""
    former, total = b"", 0
    for report in range(864):
        bars = b"".join(
            b"\rTrain: %6d/864000 [####] loss=1.0" % (1000 * report + i) for i in range(1000)
        )
        rows, former = split_rows(former, bars)
        total += len(bars)
        assert rows == []
        assert len(former) < 100
    assert total > 30_000_000
    assert last_rows(former) == ["Train: 863999/864000 [####] loss=1.0"]


@pytest.mark.parametrize(
    "unit",
    [
        b"a\b",
        b"x\x1b[A\x1b[B",
        b"\x1b[99A\x1b[99B",
        b"\x1b",
        b"\x1b]",
        b"\x1b[1",
        b"\r\x1b[K",
        b"\r",
        b"\x1b[A\x1b[9d",
        b"\x1b[999Cx\r",
        b"\x1b[2G\x1b[9999X",
        b"\x1b7\x1b[H\x1b8",
        "e\u0301".encode(),
        "失\b".encode(),
    ],
)
def test_the_work_on_hostile_output_grows_with_its_size(unit: bytes) -> None:
    output = b"x" * 60_000 + unit * (500_000 // len(unit))
    began = time.process_time()
    _, former = split_rows(b"", output)
    assert time.process_time() - began < 10.0
    assert len(former) <= ROW_BYTES + 300
