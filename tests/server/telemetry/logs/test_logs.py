"""Logs: lines through blocks, pages, search, errors and quotas."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from server.core.context import Context
from server.core.database.metric_and_log_tables import log_blocks
from server.core.database.metric_and_log_tables import logs as log_table
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.logs import pages
from server.telemetry.logs.blocks import (
    ERROR,
    blocks_of,
    first_error,
    unpack_lines,
)
from server.telemetry.logs.pages import page, search
from server.telemetry.logs.store import close_output, store_output
from tests.server.records import add_attempt, add_job

QUOTA = 10**9
Attempt = tuple[str, str]


@pytest.fixture
def attempt(context: Context) -> Attempt:
    """Ids of a job and its attempt."""
    job_id = add_job(context)
    return job_id, add_attempt(context, job_id)


def store(context: Context, attempt: Attempt, *pieces: bytes, rank: int = 0) -> None:
    for piece in pieces:
        with context.database.write() as connection:
            store_output(connection, {(attempt[1], rank): piece}, quota=QUOTA)


def texts(
    context: Context, attempt: Attempt, *, from_line: int | None = None, limit: int = 500
) -> list[str]:
    found = page(context, attempt[0], from_line=from_line, limit=limit, scope=SYSTEM_SCOPE)
    return [line.text for line in found.lines]


# ---- blocks ------------------------------------------------------------------------------------


def test_blocks_hold_all_lines_in_order() -> None:
    lines = [f"{number} {'x' * (number % 997)}" for number in range(3000)]
    blocks = blocks_of(10, lines)
    assert [line for block in blocks for line in unpack_lines(block.content)] == lines
    assert len(blocks) > 10
    first = 10
    for block in blocks:
        assert (block.first_line, block.lines) == (first, len(unpack_lines(block.content)))
        first += block.lines


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "ValueError: no",
        "RuntimeError: CUDA error: an illegal memory access",
        "Killed",
        "Fatal Python error: Segmentation fault",
        "torch.distributed.elastic: Signal 9 (SIGKILL) received by PID 7",
    ],
)
def test_errors_are_found(line: str) -> None:
    assert first_error(["fine", "step 1 error rate 0.1", line, line]) == 2
    assert first_error(["fine", line]) == 1


def test_every_kind_of_error_has_one_of_the_parts_that_are_searched_first() -> None:
    signals = [f"SIG{name}" for name in ("KILL", "SEGV", "ABRT", "BUS")]
    plain = ERROR.pattern.replace("\\b", "").replace("\\(", "(").replace("\\)", ")")
    kinds = [*plain.replace("SIG(KILL|SEGV|ABRT|BUS)", signals[0]).split("|"), *signals[1:]]
    assert len(kinds) == 13
    for kind in kinds:
        assert ERROR.search(kind), kind
        assert first_error(["fine", kind]) == 1


# ---- storing and paging ------------------------------------------------------------------------


def test_pages_from_either_end(context: Context, attempt: Attempt) -> None:
    wanted = [f"line {number} " + "x" * 300 for number in range(2000)]
    content = "".join(f"{line}\n" for line in wanted).encode()
    chance = random.Random(0)
    edges = sorted({0, len(content), *chance.sample(range(len(content)), 40)})
    store(context, attempt, *(content[a:b] for a, b in pairwise(edges)))
    assert texts(context, attempt, from_line=0, limit=5000) == wanted
    assert texts(context, attempt, from_line=700, limit=50) == wanted[700:750]
    assert texts(context, attempt) == wanted[-500:]
    assert texts(context, attempt, from_line=-20, limit=20) == wanted[-20:]
    assert texts(context, attempt, from_line=-20, limit=5) == wanted[-20:-15]
    assert texts(context, attempt, from_line=1990, limit=500) == wanted[1990:]
    assert texts(context, attempt, from_line=2000, limit=500) == []
    found = page(context, attempt[0], from_line=3, limit=2, scope=SYSTEM_SCOPE)
    assert [line.number for line in found.lines] == [3, 4]
    assert (found.first_line, found.total_lines, found.ranks) == (0, 2000, [0])


def test_small_reports_fill_blocks(context: Context, attempt: Attempt) -> None:
    store(context, attempt, *(f"{number}\n".encode() for number in range(50)))
    with context.database.read() as connection:
        assert len(connection.execute(log_blocks.select()).all()) == 1
    assert texts(context, attempt) == [str(number) for number in range(50)]


def test_a_last_line_without_an_end_waits_for_it_or_for_the_exit(
    context: Context, attempt: Attempt
) -> None:
    store(context, attempt, b"one\ntw")
    assert texts(context, attempt) == ["one"]
    store(context, attempt, b"o\nthree")
    assert texts(context, attempt) == ["one", "two"]
    with context.database.write() as connection:
        close_output(connection, attempt[1], [0, 1], quota=QUOTA)
    assert texts(context, attempt) == ["one", "two", "three"]


def test_a_progress_bar_is_one_line_that_changes(context: Context, attempt: Attempt) -> None:
    bars = b"".join(b"\rTrain: %5d/99999 [####] loss=0.1" % step for step in range(5000))
    assert len(bars) > 150_000
    store(context, attempt, b"before\n")
    for start in range(0, len(bars), 300 * len(bars) // 5000):
        store(context, attempt, bars[start : start + 10_000])
        found = page(context, attempt[0], scope=SYSTEM_SCOPE)
        assert [line.text for line in found.lines] == ["before"]
        assert found.open_line is not None
        assert found.open_line.startswith("Train:")
    assert found.open_line == "Train:  4999/99999 [####] loss=0.1"
    with context.database.read() as connection:
        (row,) = connection.execute(log_table.select()).all()
    assert row.partial_size == len(row.partial) < 100
    assert row.stored_bytes == len(b"before\n")
    store(context, attempt, b" RuntimeError: no\nafter\n")
    assert texts(context, attempt)[1:] == [f"{found.open_line} RuntimeError: no", "after"]
    found = page(context, attempt[0], scope=SYSTEM_SCOPE)
    assert (found.open_line, found.first_error_line) == (None, 1)


def test_the_last_bar_is_a_line_once_its_rank_has_ended(context: Context, attempt: Attempt) -> None:
    store(context, attempt, b"\r10%\r20%")
    with context.database.write() as connection:
        close_output(connection, attempt[1], [0], quota=QUOTA)
    found = page(context, attempt[0], scope=SYSTEM_SCOPE)
    assert ([line.text for line in found.lines], found.open_line) == (["20%"], None)


def test_any_bytes_can_be_stored(context: Context, attempt: Attempt) -> None:
    store(context, attempt, b"\xff\xfe\0\x80 tail\r\n", "naïve 火\n".encode()[:9], b"\n")
    assert texts(context, attempt) == ["��\0� tail", "naïve �"]


def test_a_page_of_long_lines_is_bounded(
    context: Context, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 100)
    store(context, attempt, *(f"{number:040}\n".encode() for number in range(10)))
    assert [int(text) for text in texts(context, attempt, from_line=0)] == [0, 1]
    assert [int(text) for text in texts(context, attempt)] == [8, 9]


def test_the_quota_drops_the_oldest_lines(context: Context, attempt: Attempt) -> None:
    quota, written = 1_000_000, 0
    with context.database.write() as connection:
        for number in range(60):
            piece = f"{number:04} {'x' * 1000}\n".encode() * 100
            written += len(piece)
            store_output(connection, {(attempt[1], 0): piece}, quota=quota)
    found = page(context, attempt[0], from_line=0, limit=10, scope=SYSTEM_SCOPE)
    with context.database.read() as connection:
        row = connection.execute(log_table.select()).one()
    assert row.stored_bytes <= quota
    assert row.stored_bytes + found.dropped_bytes == written
    assert row.stored_bytes > quota - 300_000
    assert found.first_line == found.dropped_bytes // 1006 > 0
    assert found.lines[0].number == found.first_line
    assert found.total_lines == 6000
    assert texts(context, attempt, from_line=-1) == [f"0059 {'x' * 1000}"]


# ---- searching ---------------------------------------------------------------------------------


def test_search_ignores_case_and_goes_on_where_it_stopped(
    context: Context, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SEARCHED_BLOCKS", 2)
    filling = "x" * 500
    lines = [f"{number} {'NCCL Warn' if number % 100 == 0 else filling}" for number in range(2000)]
    store(context, attempt, "".join(f"{line}\n" for line in lines).encode())
    found, start, calls = [], 0, 0
    while True:
        matches = search(
            context, attempt[0], "nccl wARN", from_line=start, limit=3, scope=SYSTEM_SCOPE
        )
        found += [line.number for line in matches.lines]
        calls += 1
        if matches.next_line is None:
            break
        assert matches.next_line > start
        start = matches.next_line
    assert found == list(range(0, 2000, 100))
    assert calls > 6


def test_the_first_error_is_remembered(context: Context, attempt: Attempt) -> None:
    store(context, attempt, b"fine\n", b"fine\nTraceback (most ", b"recent call last):\nKilled\n")
    store(context, attempt, b"fine\n", rank=1)
    assert page(context, attempt[0], scope=SYSTEM_SCOPE).first_error_line == 2
    assert page(context, attempt[0], rank=1, scope=SYSTEM_SCOPE).first_error_line is None


def test_what_cannot_be_shown_is_refused(context: Context, attempt: Attempt) -> None:
    assert page(context, attempt[0], scope=SYSTEM_SCOPE).lines == []  # nothing was written yet
    store(context, attempt, b"x\n", rank=1)
    with pytest.raises(InvalidRequestError, match="these have: 1"):
        page(context, attempt[0], rank=0, scope=SYSTEM_SCOPE)
    with pytest.raises(NotFoundError, match="no attempt 2"):
        page(context, attempt[0], attempt=2, scope=SYSTEM_SCOPE)
    with pytest.raises(NotFoundError, match="no job"):
        page(context, context.new_id(), scope=SYSTEM_SCOPE)
