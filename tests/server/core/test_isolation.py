"""Isolation of errors: which errors stop the work on other keys, too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from psycopg import OperationalError as DriverError
from psycopg.errors import DeadlockDetected
from sqlalchemy.exc import OperationalError

from server.core.database import engine
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


@pytest.mark.parametrize("own", [True, False], ids=["by this process", "by another process"])
def test_a_database_that_another_writer_locks_stops_the_work_on_all_keys(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Each further key would wait as long for the same lock."""
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.05)
    url = f"sqlite:///{tmp_path / 'trainyard.db'}"
    database = Database(url)
    other = database if own else Database(url)
    turn = isolation.turn("j1", "job j1")
    with other.write(), pytest.raises(OperationalError), turn, database.write():
        pass
    assert not isolation.left_out()
