"""Leader election: an advisory lock on PostgreSQL, a file lock next to the file of SQLite.

The lock saves work and is not needed for correctness: two schedulers that both believe to lead
serialize on the placement lock and on guarded updates.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from server.context import Context
from server.database.engine import Database

logger = logging.getLogger(__name__)

LEADER_LOCK = 7_301_003


class Leadership(Protocol):
    """The role of the one active scheduler."""

    def held(self) -> bool:
        """Return whether this process leads, taking the lead when it is free."""

    def release(self) -> None:
        """Let another one lead."""


def leadership(context: Context) -> Leadership:
    """Return the leadership that fits the database."""
    path = context.database.path
    return SessionLeadership(context.database) if path is None else FileLeadership(lock_of(path))


def lock_of(database: Path) -> Path:
    """Return the lock file next to a database, so that each database has exactly one."""
    return database.with_name(f"{database.name}.scheduler")


class FileLeadership:
    """A lock on a file, which the kernel releases when the process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def held(self) -> bool:
        """Return whether this process leads, taking the lead when it is free."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let another one lead."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class SessionLeadership:
    """An advisory lock of one PostgreSQL session, which ends with its connection.

    The session stays checked out while this process leads. When the leader's host is lost, the
    database server ends the session by its keepalives, within a minute (`CONNECT_DEFAULTS`).
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None

    def held(self) -> bool:
        """Return whether this process leads, taking the lead when it is free."""
        try:
            return self._still_held() or self._take()
        except SQLAlchemyError:
            logger.warning("the session that held the leadership is gone", exc_info=True)
            self._drop()
            return False

    def release(self) -> None:
        """Let another one lead."""
        if self._connection is None:
            return
        try:
            unlock = text("SELECT pg_advisory_unlock(:key)")
            self._connection.execute(unlock, {"key": LEADER_LOCK})
        except SQLAlchemyError:
            logger.warning("the session that held the leadership is gone", exc_info=True)
        self._drop()

    def _still_held(self) -> bool:
        if self._connection is None:
            return False
        self._connection.execute(text("SELECT 1"))  # raises where the session is gone
        return True

    def _take(self) -> bool:
        connection = self._database.engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"  # an open transaction would hold back vacuum for days
        )
        taken = connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": LEADER_LOCK})
        if taken:
            self._connection = connection
        else:
            connection.close()
        return bool(taken)

    def _drop(self) -> None:
        """Close the session instead of returning it to the pool, where it would keep the lock."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.invalidate()
            connection.close()
