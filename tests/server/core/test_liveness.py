"""Beats of the servers: stored values, the start of a gap, and failed beats without effect."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import select

from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.tables import liveness as beats
from server.core.liveness import BEAT_SECONDS, beat, keep_beating, server_uptime
from tests.server.clock import FakeClock


class Rounds(threading.Event):
    """An event that is set after a number of waits, and records their timeouts."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self.left -= 1
        return self.left < 0


def stored(context: Context) -> tuple[datetime, datetime]:
    """Return the last beat, and the time since which the servers are up."""
    with context.database.read() as connection:
        row = connection.execute(select(beats.c.beat_at, beats.c.up_since)).one()
    return row.beat_at, row.up_since


def up(context: Context) -> datetime | None:
    with context.database.read() as connection:
        found = server_uptime(connection, context.now())
    return found.up_since if found is not None else None


@pytest.mark.parametrize(
    ("seconds", "returned"),
    [(1, False), (5, False), (5.5, True), (-30, False), (-60, False), (-61, True)],
)
def test_beats_far_apart_or_from_the_future_begin_a_new_time(
    context: Context, clock: FakeClock, seconds: float, returned: bool
) -> None:
    first = clock.now()
    beat(context)
    assert stored(context) == (first, first)
    now = clock.advance(seconds)
    beat(context)
    last = now if seconds > 0 or returned else first  # another server's clock may be ahead
    assert stored(context) == (last, now if returned else first)


@pytest.mark.parametrize(
    ("seconds", "known"), [(0, True), (5, True), (5.5, False), (-60, True), (-61, False)]
)
def test_servers_are_up_while_a_beat_is_recent(
    context: Context, clock: FakeClock, seconds: float, known: bool
) -> None:
    assert up(context) is None
    first = clock.now()
    beat(context)
    clock.advance(1)
    beat(context)
    clock.advance(seconds)
    assert up(context) == (first if known else None)


def test_a_server_beats_until_it_is_stopped(context: Context, clock: FakeClock) -> None:
    stop = Rounds(1)
    keep_beating(context, stop)
    assert stop.waits == [BEAT_SECONDS, BEAT_SECONDS]
    assert stored(context) == (clock.now(), clock.now())


def test_a_database_that_does_not_answer_is_logged_and_tried_again(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    away = replace(context, database=Database("sqlite:////nowhere/trainyard.db"))
    stop = Rounds(2)
    keep_beating(away, stop)
    assert len(stop.waits) == 3
    assert [record.getMessage() for record in caplog.records] == ["no beat was written"] * 2
    assert all(record.exc_info for record in caplog.records)
