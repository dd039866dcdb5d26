"""The one way to the database: short transactions, committed at their edge and nowhere else."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

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

# Key of the advisory lock that keeps the ids of events in commit order on PostgreSQL.
EVENTS_LOCK = 7_301_001

# Both ends of a connection to PostgreSQL notice within a minute that the other is gone without
# a close (a host that lost its power, a cut network). With the system's defaults a lock of a dead
# client would stay for more than two hours. The connection of a process that is stopped inside a
# transaction stays alive: PostgreSQL ends its session, because its locks stop the other servers.
CONNECT_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    # A statement outside a transaction is a read, so that it may not write (see `Database.read`).
    "options": "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3 "
    "-c idle_in_transaction_session_timeout=10s -c default_transaction_read_only=on",
}
"""libpq's parameters of a connection; what the URL itself names wins."""

BUSY_SECONDS = 30.0
"""Longest wait of a thread for its turn to write, and on SQLite then for another process."""


RESTED_SECONDS = 1.0
"""Rest of a pooled connection after which it is tested with a message of its own before it is used.
PostgreSQL may have been restarted meanwhile; below it, that test would be a third of the messages
of a short read."""


WRITERS = 2
"""Threads of a process that write PostgreSQL at the same time.

One computes while another one waits for an answer. More bring no more reports, for the interpreter
runs one thread at a time and rows are locked for longer, and whoever reads waits behind all of
them (docs/benchmarks.md)."""


class LeadLostError(Exception):
    """Another scheduler leads; nothing of this transaction is stored."""


class Database:
    """An engine with three kinds of transactions.

    On SQLite every writing transaction begins IMMEDIATE: one that reads first and writes later
    cannot wait for a lock and fails at once. On PostgreSQL each runs at READ COMMITTED; guarded
    updates do the rest.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self._reading = reading(self.engine)
        # Threads of one process take turns. SQLite has one writer, and its own wait for another one
        # is to sleep for up to 100 ms at a time.
        self._turn = threading.BoundedSemaphore(1 if self.is_sqlite else WRITERS)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite."""
        return self.engine.dialect.name == "sqlite"

    @property
    def path(self) -> Path | None:
        """File of an SQLite database, symbolic links followed; None on PostgreSQL."""
        return Path(self.engine.url.database or "").resolve() if self.is_sqlite else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection for statements that change nothing.

        On PostgreSQL each of them is a transaction of its own: that is what READ COMMITTED shows
        them in a common one too, and its begin and its end would be two further messages. On SQLite
        all of them see the same state.
        """
        with self._reading.connect() as connection:
            yield connection

    def blocks(self, table: Table, owner_id: str) -> Iterator[bytes]:
        """Yield the blocks of a content in their order; each is read when it is wanted.

        It ends at the first number that is absent, as where the content is deleted meanwhile.

        Args:
            table: its key is the id of the owner of the blocks, and their number from 0; the column
                `content` has the bytes.
            owner_id: whose blocks.
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
        """Open a transaction that changes nothing, and whose statements see the same state.

        A query whose rows are fetched a part at a time needs it.
        """
        with self.engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that is committed when the block ends, and rolled back when it raises.

        No network call belongs inside: whatever is to be sent is sent after the block.

        Raises:
            OperationalError: other writers were not done within `BUSY_SECONDS`.
        """
        with self._turn_to_write(), self.engine.connect() as connection:
            if self.is_sqlite:
                connection.info["immediate"] = True
            with connection.begin():
                yield connection

    @contextmanager
    def _turn_to_write(self) -> Iterator[None]:
        # With a limit: threads that wait for another process would fail one after another.
        if not self._turn.acquire(timeout=BUSY_SECONDS):
            # As SQLite itself refuses a writer, so that all who handle that handle this.
            busy = sqlite3.OperationalError(f"no turn to write within {BUSY_SECONDS:g} seconds")
            raise OperationalError("BEGIN", None, busy)
        try:
            yield
        finally:
            self._turn.release()

    def lock_events(self, connection: Connection) -> None:
        """Make other writers of events wait for this transaction, so that ids follow commits."""
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": EVENTS_LOCK})

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def reading(engine: Engine) -> Engine:
    """Return the engine, with the same pool, whose statements are transactions of their own.

    SQLite has no messages to save: there a transaction holds them together.
    """
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def database_time(connection: Connection, *, plus: float = 0.0) -> ColumnElement[datetime]:
    """Return the present time of the database, not that of the transaction's start, in a query.

    All servers share this clock; with SQLite it is that of their machine.

    Args:
        connection: a transaction.
        plus: seconds that are added.
    """
    return time_of(connection.dialect.name, plus=plus)


def time_of(dialect: str, *, plus: float = 0.0) -> ColumnElement[datetime]:
    """Return `database_time` for a dialect of that name."""
    if dialect == "sqlite":  # in the form in which it stores times
        seconds = f"{plus:+.3f} seconds"
        return func.strftime("%Y-%m-%d %H:%M:%f000", "now", seconds, type_=UtcDateTime)
    return func.clock_timestamp(type_=DateTime(timezone=True)) + timedelta(seconds=plus)


def _keep_private(path: Path) -> None:
    """Let only the owner read an SQLite database, what belongs to it, and its folder.

    SQLite gives `-wal` and `-shm` the mode of the database. A folder that others share on purpose
    (the sticky bit, as in `/tmp`) or that belongs to another user stays as it is.
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
    except OSError as error:  # SQLite's own error names what cannot be opened
        logger.warning("others may be able to read %s: %s", path, error)


def _postgresql(target: URL) -> Engine:
    completed = target.update_query_dict(CONNECT_DEFAULTS | dict(target.query))
    engine = create_engine(completed, pool_size=10, max_overflow=20)

    @event.listens_for(engine, "connect")
    def _let_transactions_write(connection: Any, _record: Any) -> None:
        connection.read_only = False  # in each BEGIN, against the default of the session

    @event.listens_for(engine, "checkin")
    def _begin_rest(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["rests_since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _test_rested(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        rests_since = record.info.pop("rests_since", None)  # absent from a new connection
        if rests_since is None or time.monotonic() - rests_since < RESTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            # Not this connection alone: the others were opened before the restart, too.
            raise InvalidatePoolError from error

    return engine


def _engine(url: str) -> Engine:
    target = make_url(url)
    if target.get_backend_name() != "sqlite":
        return _postgresql(target)
    _keep_private(Path(target.database or ""))
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        immediate = connection.info.pop("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine
