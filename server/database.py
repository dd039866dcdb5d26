"""The one way to the database: short transactions, committed at their edge and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text

# Key of the advisory lock that keeps the ids of events in commit order on PostgreSQL.
EVENTS_LOCK = 7_301_001


class Database:
    """An engine with two kinds of transactions.

    On SQLite every writing transaction begins IMMEDIATE: one that reads first and writes later
    cannot wait for a lock and fails at once. On PostgreSQL each runs at READ COMMITTED; guarded
    updates do the rest.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)

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
        """Open a transaction that changes nothing."""
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that is committed when the block ends, and rolled back when it raises.

        No network call belongs inside: whatever is to be sent is sent after the block.
        """
        with self.engine.connect() as connection:
            if self.is_sqlite:
                connection.info["immediate"] = True
            with connection.begin():
                yield connection

    def lock_events(self, connection: Connection) -> None:
        """Make other writers of events wait for this transaction, so that ids follow commits."""
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": EVENTS_LOCK})

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=20)
    engine = create_engine(url, connect_args={"timeout": 30})

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
