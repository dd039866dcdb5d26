"""Isolation of errors: which errors stop the work on other keys, too."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

import pytest
from psycopg import OperationalError as DriverError
from psycopg.errors import DeadlockDetected
from sqlalchemy.exc import OperationalError

from server.core.database.engine import Database, LeadLostError
from server.core.isolation import Isolation
from tests.server.clock import FakeClock


@pytest.fixture
def isolation(clock: FakeClock) -> Isolation:
    return Isolation(clock.monotonic, pause=timedelta(seconds=30))


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("of one job alone"),
        OperationalError("UPDATE jobs", {}, DeadlockDetected("deadlock detected")),
        OperationalError("BEGIN IMMEDIATE", {}, sqlite3.OperationalError("database is locked")),
    ],
)
def test_an_error_of_one_key_leaves_it_out_for_a_while(
    isolation: Isolation, clock: FakeClock, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    with isolation.turn("j1", "the size of job j1"):
        fail(error)
    assert "the size of job j1 is left out for 0:00:30" in caplog.text
    assert isolation.is_left_out("j1")
    assert set(isolation.left_out()) == {"j1"}
    clock.advance(30)
    assert not isolation.is_left_out("j1")
    assert not isolation.left_out()


@pytest.mark.parametrize(
    "error",
    [
        LeadLostError(),
        OperationalError("UPDATE", {}, DriverError("closed"), connection_invalidated=True),
    ],
)
def test_an_error_that_others_would_meet_too_is_raised(
    isolation: Isolation, error: Exception
) -> None:
    with pytest.raises(type(error)), isolation.turn("j1", "the size of job j1"):
        fail(error)
    assert not isolation.left_out()


def test_a_database_that_cannot_be_reached_stops_the_work_on_all_keys(
    isolation: Isolation,
) -> None:
    database = Database("postgresql+psycopg://trainyard@127.0.0.1:1/trainyard")
    with pytest.raises(OperationalError), isolation.turn("j1", "job j1"), database.read():
        pass
    assert not isolation.left_out()
