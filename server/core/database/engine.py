"""The only access to the database: short transactions that commit when their `with` block ends."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    DateTime,
    Engine,
    Table,
    create_engine,
    event,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import InvalidatePoolError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from server.core.database.column_types import UtcDateTime

logger = logging.getLogger(__name__)

# Key of the PostgreSQL advisory lock that keeps the ids of events in commit order.
EVENTS_LOCK = 7_301_001

# Client and PostgreSQL each detect within a minute that the other side vanished without closing the
# connection. With the system's defaults, a dead client would keep its locks for two hours.
# PostgreSQL ends the session of a process that stops inside a transaction.
CONNECT_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    # Statements outside a transaction are reads and must not write (see `Database.read`).
    "options": "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3 "
    "-c idle_in_transaction_session_timeout=10s -c default_transaction_read_only=on",
}
"""Connection parameters of libpq; parameters in the URL take precedence."""

BUSY_SECONDS = 30.0
"""Maximum wait of a thread for the other writers of its process, in seconds. On SQLite, the thread
may then wait for the writers of other processes, again for at most this time.
"""
RESTED_SECONDS = 1.0
"""Idle time, in seconds, after which a pooled connection is pinged before use. PostgreSQL may have
restarted during this time. With a ping before each use, a third of the messages of short reads
would be pings.
"""
WRITERS = 2
"""Maximum number of threads of a process that write to PostgreSQL at the same time. One thread
computes while the other one waits for a response. A third thread would not raise the throughput
(docs/benchmarks-server.md).
"""

Value = TypeVar("Value")


class TransactionObserver(Protocol):
    """Adds rows to the writing transactions of one request, such as those of the audit log."""

    def begin(self) -> None:
        """Prepare for a new transaction."""

    def before_commit(self, connection: Connection) -> None:
        """Store the rows; an error rolls the transaction back."""

    def after_commit(self) -> None:
        """Note that the transaction is stored."""


OBSERVER: ContextVar[TransactionObserver | None] = ContextVar("transaction_observer", default=None)
"""Observer of the writing transactions of the current thread or task; None for most work."""


class LeadLostError(Exception):
    """Another scheduler leads, so nothing of this transaction is stored."""


class Database:
    """An engine with three kinds of transactions.

    On SQLite every writing transaction starts with BEGIN IMMEDIATE, because a transaction that
    starts with a read would fail instead of waiting for a lock. On PostgreSQL every writing
    transaction runs at READ COMMITTED, so the WHERE conditions of its updates guard against
    concurrent changes.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self._reading = reading(self.engine)
        # Without turns, threads would wait for SQLite's only writer in sleeps of up to 100 ms.
        self._turn = threading.BoundedSemaphore(1 if self.is_sqlite else WRITERS)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is SQLite."""
        return self.engine.dialect.name == "sqlite"

    @property
    def path(self) -> Path | None:
        """Path of the SQLite database's file, with symbolic links resolved; None on PostgreSQL."""
        return Path(self.engine.url.database or "").resolve() if self.is_sqlite else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection for statements that change nothing.

        On PostgreSQL each statement is its own transaction, which saves the messages BEGIN and
        COMMIT. On SQLite all statements see the same state.
        """
        with self._reading.connect() as connection:
            yield connection

    def blocks(self, table: Table, owner_id: str) -> Iterator[bytes]:
        """Yield the blocks of a stored content in order; a block is read when the caller needs it.

        The function stops at the first missing block number, for example because the content is
        deleted meanwhile. The primary key of `table` has the owner's id and the block's number,
        which starts at 0. The column `content` has the bytes.
        """
        owner, number = table.primary_key.columns
        for following in count():
            query = select(table.c.content).where(owner == owner_id, number == following)
            with self.read() as connection:
                content: bytes | None = connection.scalar(query)
            if content is None:
                return
            yield content

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Open a transaction for reads, in which all statements see the same state."""
        with self.engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that commits at the end of the block, and rolls back on an error.

        The block must make no network call.

        Raises:
            OperationalError: other writers did not finish within `BUSY_SECONDS`.
        """
        with self._turn_to_write(), self.engine.connect() as connection:
            if self.is_sqlite:
                connection.info["immediate"] = True
            observer = OBSERVER.get()
            if observer is not None:
                observer.begin()
            with connection.begin():
                yield connection
                if observer is not None:
                    observer.before_commit(connection)
            if observer is not None:
                observer.after_commit()

    @contextmanager
    def _turn_to_write(self) -> Iterator[None]:
        # Without a timeout here, threads that wait for another process would time out one by one.
        if not self._turn.acquire(timeout=BUSY_SECONDS):
            busy = sqlite3.OperationalError(f"no turn to write within {BUSY_SECONDS:g} seconds")
            raise OperationalError("BEGIN", None, busy)
        try:
            yield
        finally:
            self._turn.release()

    def lock_events(self, connection: Connection) -> None:
        """Make other writers of events wait, so that the ids of events are in commit order."""
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": EVENTS_LOCK})

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def reading(engine: Engine) -> Engine:
    """Return the engine in autocommit mode, with the same pool; on SQLite, return it unchanged."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def database_time(connection: Connection, *, plus: float = 0.0) -> ColumnElement[datetime]:
    """Return the database's current time plus some seconds, as a column of a query.

    All servers share this clock; on SQLite it is the clock of their machine.
    """
    return time_of(connection.dialect.name, plus=plus)


def time_of(dialect: str, *, plus: float = 0.0) -> ColumnElement[datetime]:
    """Return `database_time` for a dialect, given by name."""
    if dialect == "sqlite":  # in the format of stored times
        seconds = f"{plus:+.3f} seconds"
        return func.strftime("%Y-%m-%d %H:%M:%f000", "now", seconds, type_=UtcDateTime)
    return func.clock_timestamp(type_=DateTime(timezone=True)) + timedelta(seconds=plus)


def batches(values: Sequence[Value], size: int) -> Iterator[Sequence[Value]]:
    """Yield the values in order, in batches of at most `size` values."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _keep_private(path: Path) -> None:
    """Let only the owner read an SQLite database, its `-wal` and `-shm` files, and its folder.

    A folder of another user, or one with the sticky bit such as `/tmp`, keeps its mode.
    """
    if path.name in {"", ":memory:"}:
        return
    folder = path.resolve().parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
            with suppress(FileNotFoundError):
                file.chmod(0o600)
        found = folder.stat()
        if found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX:
            folder.chmod(0o700)
    except OSError as error:  # if a file cannot be opened, SQLite's own error names it later
        logger.warning("others may be able to read %s: %s", path, error)


def _postgresql(target: URL) -> Engine:
    completed = target.update_query_dict(CONNECT_DEFAULTS | dict(target.query))
    engine = create_engine(completed, pool_size=10, max_overflow=20, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _let_transactions_write(connection: Any, _record: Any) -> None:
        connection.read_only = False  # set in each BEGIN; this overrides the session's default

    @event.listens_for(engine, "checkin")
    def _begin_rest(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["rests_since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _test_rested(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        rests_since = record.info.pop("rests_since", None)  # absent for a new connection
        if rests_since is None or time.monotonic() - rests_since < RESTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            # Drop the whole pool, because the other connections are from before the restart, too.
            raise InvalidatePoolError from error

    return engine


def _engine(url: str) -> Engine:
    target = make_url(url)
    if target.get_backend_name() != "sqlite":
        return _postgresql(target)
    if "uri" in target.query or (target.database or "").startswith("file:"):
        raise ValueError("the URL of an SQLite database names a path: legal is sqlite:///PATH")
    _keep_private(Path(target.database or ""))
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not start transactions by itself
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        immediate = connection.info.pop("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine
