"""Notices: the newest state of values that change often, for live views; not in the audit log.

A notice replaces the former notice with the same job, kind and part. So the table does not grow
with time, and a client that missed notices needs only the newest ones.

The tail reads changes in the order of the column `seq`. On PostgreSQL, `seq` is the id of the
transaction, because writers of different jobs do not wait for each other. Until a transaction has
ended, the tail reads its rows again with each poll. On SQLite, with one writer at a time, `seq` is
a counter; the highest `seq` of a deleted row is stored, so that no `seq` is reused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    Text,
    cast,
    delete,
    func,
    select,
    type_coerce,
    update,
)

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import deleted_notices, jobs, notices
from server.core.database.upsert import insert_or_replace
from server.core.subject import Subject
from server.core.visibility.scope import Scope
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.job_artifacts.events import ArtifactsStored
from trainyard.protocol.rest.event_data import LogStored, OperationData
from trainyard.protocol.rest.events import NOTICE_KIND_OF


@dataclass(frozen=True, slots=True)
class StoredNotice(TypedRow):
    """A stored notice; its data are not parsed and stay JSON text."""

    table: ClassVar[Table] = notices
    at: datetime
    kind: str
    job_id: str
    attempt: int | None
    node: str | None
    data: Annotated[str, type_coerce(notices.c.data, Text).label("data")]
    part: str
    seq: int
    project: Annotated[str | None, jobs.c.project]

    @property
    def key(self) -> tuple[str, str, str]:
        """Primary key of the notice; a later notice with the same key replaces this one."""
        return self.job_id, self.kind, self.part

    @property
    def view(self) -> dict[str, object]:
        """The fields of a `NoticeView`, for orjson to serialize."""
        row = {name: getattr(self, name) for name in _VIEW_NAMES}
        return {**row, "data": orjson.Fragment(self.data)}


_WITH_PROJECT = StoredNotice.select().outerjoin(jobs, jobs.c.id == notices.c.job_id)
_VIEW_NAMES = tuple(
    f.name for f in fields(StoredNotice) if f.name not in {"part", "seq", "project"}
)


class NoticeCursor:
    """Position of one tail in the notices; reads each change once."""

    def __init__(self) -> None:
        self._from = 0
        self._seen: set[tuple[tuple[str, str, str], int]] = set()
        self._next = self._from, self._seen

    def start(self, connection: Connection) -> None:
        """Start after the current notices."""
        self.skip(connection)
        self.advance()

    def skip(self, connection: Connection) -> None:
        """Let the next `advance` pass the current notices without reading them."""
        settled = _settled(connection)
        key = notices.c.job_id, notices.c.kind, notices.c.part, notices.c.seq
        rows = connection.execute(select(*key).where(notices.c.seq >= settled))
        self._next = settled, {((job_id, kind, part), seq) for job_id, kind, part, seq in rows}

    def read(self, connection: Connection) -> list[StoredNotice]:
        """Return the notices that changed since the last `advance`, in the order of `seq`."""
        # Read before the rows, so that the rows contain all settled changes.
        settled = _settled(connection)
        query = _WITH_PROJECT.where(notices.c.seq >= self._from)
        rows = StoredNotice.all(connection, query.order_by(notices.c.seq))
        new = [row for row in rows if (row.key, row.seq) not in self._seen]
        self._next = settled, {(row.key, row.seq) for row in rows if row.seq >= settled}
        return new

    def advance(self) -> None:
        """Move past the notices of the last `read` or `skip`, once these have been handed on."""
        self._from, self._seen = self._next


def notify(context: Context, connection: Connection, *, subject: Subject, data: EventData) -> None:
    """Store a notice about a job; it replaces the notice with the same key."""
    notify_all(context, connection, [(subject, data)])


def notify_all(
    context: Context, connection: Connection, new: Iterable[tuple[Subject, EventData]]
) -> None:
    """Store notices in one statement; callers sort them by job, to prevent deadlocks."""
    rows = [_row(context, subject, data) for subject, data in new]
    insert_or_replace(connection, notices, rows, seq=_next(connection.dialect.name))


def forget(connection: Connection, job_id: str, *, part: str | None = None) -> None:
    """Delete a job's notices, or only those of one `part`, such as an ended operation."""
    if connection.dialect.name == "sqlite":
        connection.execute(update(deleted_notices).values(last_seq=_newest()))
    stale = delete(notices).where(notices.c.job_id == job_id)
    connection.execute(stale if part is None else stale.where(notices.c.part == part))


def read_notices(
    connection: Connection, *, since: datetime, job_id: str | None, scope: Scope
) -> list[StoredNotice]:
    """Return the notices that changed at or after `since`, for one or all visible jobs."""
    query = _WITH_PROJECT.where(notices.c.at >= since, scope.filter(jobs.c.project))
    query = query.order_by(notices.c.seq)
    of_job = query if job_id is None else query.where(notices.c.job_id == job_id)
    return list(StoredNotice.all(connection, of_job))


def _row(context: Context, subject: Subject, data: EventData) -> dict[str, Any]:
    assert subject.job_id is not None
    return {
        "job_id": subject.job_id,
        "kind": NOTICE_KIND_OF[type(data)].value,
        "part": _part(data),
        "at": context.now(),
        "attempt": subject.attempt,
        "node": subject.node,
        "data": orjson.Fragment(data.model_dump_json()),  # pydantic writes NaN as a string
    }


def _part(data: EventData) -> str:
    if isinstance(data, LogStored):
        return str(data.rank)
    if isinstance(data, ArtifactsStored):
        return data.group or ""
    return data.operation_id if isinstance(data, OperationData) else ""


@cache
def _next(dialect: str) -> ColumnElement[int]:
    if dialect == "sqlite":
        return _newest() + 1
    return _number(func.pg_current_xact_id())


def _settled(connection: Connection) -> int:
    """Return the lowest `seq` that a further change can have."""
    if connection.dialect.name == "sqlite":
        lowest = _newest() + 1
    else:
        lowest = _number(func.pg_snapshot_xmin(func.pg_current_snapshot()))
    return connection.execute(select(lowest)).scalar_one()


def _newest() -> ColumnElement[int]:
    """On SQLite, return the highest `seq` that any stored or deleted row has had."""
    present = select(func.coalesce(func.max(notices.c.seq), 0)).scalar_subquery()
    return func.max(present, select(deleted_notices.c.last_seq).scalar_subquery())


def _number(transaction_id: ColumnElement[Any]) -> ColumnElement[int]:
    # An xid8 can be cast to a number only through text.
    return cast(cast(transaction_id, Text), BigInteger)
