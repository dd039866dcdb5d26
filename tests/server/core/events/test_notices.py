"""Notices: the newest of each job, kind and part, each change read once by every tail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, select

from server.core.context import Context
from server.core.database.tables import notices
from server.core.events.notices import NoticeCursor, StoredNotice, forget, notify, notify_all
from server.core.subject import Subject
from trainyard.protocol.rest.event_data import LogStored, Waiting


def waits(context: Context, job_id: str, reason: str) -> None:
    """Commit one notice."""
    with context.database.write() as connection:
        notify(context, connection, subject=Subject(job_id), data=Waiting(reason=reason))


def take(context: Context, cursor: NoticeCursor) -> list[tuple[str, str]]:
    """Return job and reason of a cursor's notices."""
    with context.database.read() as connection:
        found = [(row.job_id, _reason(row)) for row in cursor.read(connection)]
    cursor.advance()
    return found


def _reason(row: StoredNotice) -> str:
    return Waiting.model_validate_json(row.data).reason


@contextmanager
def started(context: Context) -> Iterator[NoticeCursor]:
    """A cursor that starts now."""
    cursor = NoticeCursor()
    with context.database.read() as connection:
        cursor.start(connection)
    yield cursor


def rows_of(connection: Connection, job_id: str) -> list[tuple[str, str]]:
    """Return kind and part of a job's notices."""
    mine = select(notices.c.kind, notices.c.part).where(notices.c.job_id == job_id)
    return [(kind, part) for kind, part in connection.execute(mine.order_by(notices.c.part))]


def test_a_notice_replaces_the_one_of_its_job_kind_and_part(context: Context) -> None:
    with context.database.write() as connection:
        for rank, lines in ((0, 1), (1, 1), (0, 2)):
            notify(
                context, connection, subject=Subject("a"), data=LogStored(rank=rank, lines=lines)
            )
        notify(context, connection, subject=Subject("a"), data=Waiting(reason="r"))
        notify(context, connection, subject=Subject("b"), data=Waiting(reason="r"))
    with context.database.read() as connection:
        assert rows_of(connection, "a") == [("waiting", ""), ("log", "0"), ("log", "1")]
        newest = select(notices.c.data).where(notices.c.kind == "log", notices.c.part == "0")
        assert connection.scalar(newest) == {"rank": 0, "lines": 2}
    with context.database.write() as connection:
        forget(connection, "a", part="0")
        assert rows_of(connection, "a") == [("waiting", ""), ("log", "1")]
        forget(connection, "a")
        assert rows_of(connection, "a") == []
        assert rows_of(connection, "b") == [("waiting", "")]


def test_a_cursor_brings_each_change_once(context: Context) -> None:
    waits(context, "old", "before")
    with started(context) as cursor:
        assert take(context, cursor) == []
        waits(context, "a", "one")
        waits(context, "b", "one")
        assert take(context, cursor) == [("a", "one"), ("b", "one")]
        assert take(context, cursor) == []
        waits(context, "a", "two")
        waits(context, "a", "three")
        assert take(context, cursor) == [("a", "three")]


def test_a_change_is_seen_after_the_newest_row_was_deleted(context: Context) -> None:
    with started(context) as cursor:
        for turn in range(3):
            waits(context, "a", f"{turn}")
            assert take(context, cursor) == [("a", f"{turn}")]
            with context.database.write() as connection:
                forget(connection, "a")
        waits(context, "b", "later")
        assert take(context, cursor) == [("b", "later")]


def test_a_change_is_seen_after_a_deletion_and_a_clock_that_was_set_back(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(context) as cursor:
        for job_id in ("a", "b", "c"):
            waits(context, job_id, "one")
        assert len(take(context, cursor)) == 3
        with context.database.write() as connection:
            for job_id in ("b", "c"):
                forget(connection, job_id)
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        waits(context, "d", "later")
        assert take(context, cursor) == [("d", "later")]


def test_a_transaction_that_commits_late_is_not_missed(context: Context) -> None:
    """Writers of two jobs do not wait for each other; SQLite has one writer at a time."""
    if context.database.is_sqlite:
        return
    with started(context) as cursor, context.database.write() as slow:
        notify(context, slow, subject=Subject("slow"), data=Waiting(reason="one"))
        waits(context, "quick", "one")
        assert take(context, cursor) == [("quick", "one")]
        waits(context, "quick", "two")
        assert take(context, cursor) == [("quick", "two")]
        assert take(context, cursor) == []
        slow.commit()
        assert take(context, cursor) == [("slow", "one")]
        assert take(context, cursor) == []


def test_every_last_state_arrives_whatever_the_order_of_commits(context: Context) -> None:
    writers, each = 4, 40
    done = threading.Event()
    seen: dict[str, str] = {}

    def write(job_id: str) -> None:
        for number in range(each):
            waits(context, job_id, str(number))

    def follow(cursor: NoticeCursor) -> None:
        last_round = False
        while not last_round:
            last_round = done.is_set()
            seen.update(take(context, cursor))

    with started(context) as cursor, ThreadPoolExecutor(writers + 1) as pool:
        reader = pool.submit(follow, cursor)
        list(pool.map(write, [f"job-{n}" for n in range(writers)]))
        done.set()
        reader.result()
    assert seen == {f"job-{n}": str(each - 1) for n in range(writers)}


def test_many_notices_are_one_statement_and_none_is_nothing(context: Context) -> None:
    with context.database.write() as connection:
        notify_all(context, connection, [])
        told = [(Subject(f"{n:03}"), Waiting(reason="r")) for n in range(300)]
        notify_all(context, connection, told)
    with context.database.read() as connection:
        assert connection.scalar(select(sa.func.count()).select_from(notices)) == 300


def test_what_was_read_comes_again_until_it_is_handed_over(context: Context) -> None:
    with started(context) as cursor:
        waits(context, "a", "one")
        with context.database.read() as connection:
            assert len(cursor.read(connection)) == 1  # and the read of the events fails
        assert take(context, cursor) == [("a", "one")]
        assert take(context, cursor) == []
