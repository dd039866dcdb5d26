"""Connections: how long PostgreSQL connections wait for a silent peer, and turns to write."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, OperationalError

from server.core.database import engine
from server.core.database.engine import CONNECT_DEFAULTS, Database, batches


def parameters(url: URL) -> dict[str, str]:
    """Return the parameters that libpq got for a connection."""
    database = Database(url.render_as_string(hide_password=False))
    try:
        with database.engine.connect() as connection:
            driver = connection.connection.dbapi_connection
            assert driver is not None
            return dict(driver.info.get_parameters())
    finally:
        database.dispose()


@pytest.mark.integration
def test_both_ends_look_for_a_peer_that_is_gone_without_a_word(postgres_url: URL) -> None:
    assert parameters(postgres_url).items() >= CONNECT_DEFAULTS.items()


@pytest.mark.integration
def test_what_the_url_names_wins(postgres_url: URL) -> None:
    named = postgres_url.update_query_dict({"keepalives_idle": "7"})
    assert parameters(named).items() >= (CONNECT_DEFAULTS | {"keepalives_idle": "7"}).items()


@pytest.mark.integration
def test_a_process_that_is_stopped_inside_a_transaction_loses_its_locks(postgres_url: URL) -> None:
    """Its session is idle; with the shipped limit a test would last ten seconds."""
    options = CONNECT_DEFAULTS["options"].replace("=10s", "=200ms")
    assert options != CONNECT_DEFAULTS["options"]
    url = postgres_url.update_query_dict({"options": options})
    stopped, other = (Database(url.render_as_string(hide_password=False)) for _ in range(2))

    def hold_the_lock() -> None:
        with stopped.write() as connection:
            stopped.lock_events(connection)
            with other.write() as second:
                other.lock_events(second)  # waits until the first session has ended

    with pytest.raises(DBAPIError, match="idle-in-transaction"):
        hold_the_lock()
    stopped.dispose()
    other.dispose()


@pytest.mark.integration
def test_a_read_begins_no_transaction_and_cannot_write(postgres_url: URL) -> None:
    database = Database(postgres_url.render_as_string(hide_password=False))
    with database.read() as connection:
        held = connection.connection.dbapi_connection
        assert held is not None
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
        assert held.info.transaction_status == TransactionStatus.IDLE
        with pytest.raises(DBAPIError, match="read-only transaction"):
            connection.exec_driver_sql("CREATE TABLE forbidden (value INTEGER)")
    with database.snapshot() as connection:
        ids = "SELECT pg_current_snapshot()::text"
        before = connection.exec_driver_sql(ids).scalar_one()
        with database.write() as other:
            other.exec_driver_sql("CREATE TEMPORARY TABLE allowed (value INTEGER)")
        assert connection.exec_driver_sql(ids).scalar_one() == before
    database.dispose()


@pytest.mark.integration
def test_a_connection_that_died_at_rest_is_replaced(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, killer = (
        Database(postgres_url.render_as_string(hide_password=False)) for _ in range(2)
    )
    seen: list[str] = []
    ping = database.engine.dialect.do_ping

    def note(raw: DBAPIConnection) -> bool:
        seen.append("ping")
        return ping(raw)

    monkeypatch.setattr(database.engine.dialect, "do_ping", note)

    def session() -> int:
        with database.read() as connection:
            return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    first = session()
    assert session() == first
    assert seen == [], "it has just been used"
    monkeypatch.setattr(engine, "RESTED_SECONDS", 0.0)
    assert session() == first
    assert seen == ["ping"]
    with killer.write() as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({first}, 10000)")
    assert session() != first
    assert seen == ["ping"] * 2, "a new connection needs no test"
    database.dispose()
    killer.dispose()


def test_a_server_that_answers_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = make_url(f"postgresql://somebody@127.0.0.1:{port}/db?connect_timeout=2")
        began = time.monotonic()
        with pytest.raises(OperationalError, match="timeout"):
            parameters(url)
        assert time.monotonic() - began < 20


def test_threads_take_turns_to_write_sqlite(tmp_path: Path) -> None:
    """None of them waits in SQLite, which sleeps between its tries: here it tries once."""
    database = Database(f"sqlite:///{tmp_path}/trainyard.db")
    event.listen(database.engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout = 0"))
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE sums (value INTEGER)")
        connection.exec_driver_sql("INSERT INTO sums VALUES (0)")

    def add(_: int) -> None:
        with database.write() as connection:
            connection.exec_driver_sql("UPDATE sums SET value = value + 1")
            time.sleep(0.01)  # others would find the database locked

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT value FROM sums").scalar_one() == 16
    database.dispose()


@pytest.mark.integration
def test_few_threads_write_postgresql_at_once_and_none_waits_to_read(postgres_url: URL) -> None:
    database = Database(postgres_url.render_as_string(hide_password=False))
    counting = threading.Lock()
    writing, most = 0, 0

    def write(_: int) -> None:
        nonlocal writing, most
        with database.write() as connection:
            with counting:
                writing += 1
                most = max(most, writing)
            connection.exec_driver_sql("SELECT pg_sleep(0.05)")
            with counting:
                writing -= 1

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(16)))
        assert most == engine.WRITERS
        with ExitStack() as stack:
            for _ in range(engine.WRITERS):
                stack.enter_context(database.write())
            with database.read() as connection:
                assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    finally:
        database.dispose()


@pytest.mark.integration
def test_a_writer_of_postgresql_without_a_turn_is_refused(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.05)
    database = Database(postgres_url.render_as_string(hide_password=False))
    try:
        with ExitStack() as stack:
            for _ in range(engine.WRITERS):
                stack.enter_context(database.write())
            with pytest.raises(OperationalError, match="no turn to write"), database.write():
                pass
        with database.write():  # the turns are given back
            pass
    finally:
        database.dispose()


def test_threads_that_wait_for_another_process_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread with the turn waits in SQLite; the others wait equally long for the turn.

    Without a limit of the turn, each of the ten would wait in SQLite, one after another.
    """
    monkeypatch.setattr(engine, "BUSY_SECONDS", 2.0)
    url = f"sqlite:///{tmp_path}/trainyard.db"
    database, other = Database(url), Database(url)

    def write(_: int) -> str:
        with pytest.raises(OperationalError) as refused, database.write():
            pass
        return str(refused.value.orig)

    with other.write(), ThreadPoolExecutor(10) as pool:
        reasons = list(pool.map(write, range(10)))
    # A thread that gets the turn at its last moment waits in SQLite, too.
    assert 1 <= reasons.count("database is locked") <= 5
    assert set(reasons) <= {"database is locked", "no turn to write within 2 seconds"}
    with database.write():  # the turn is given back
        pass
    for each in (database, other):
        each.dispose()


def test_batches_have_all_values_once_in_their_order() -> None:
    assert list(batches([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(batches((1, 2), 2)) == [(1, 2)]
    assert list(batches([], 2)) == []
