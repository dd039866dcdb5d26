"""Reads of the queue: the jobs that wait, in pages, and how many are ahead of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar, Self

from sqlalchemy import ColumnElement, Connection, Table, and_, func, or_, select

from server.database.rows import TypedRow
from server.database.tables import jobs
from server.jobs.queries import shown_reason
from server.queue.groups import ORDER
from trainyard.protocol.states import JobState
from trainyard.spec.sections.resources import LOWEST_PRIORITY

TOKEN = r"^[0-9]{3}[0-9]{16}[0-7][0-9a-hjkmnp-tv-z]{25}$"
"""Priority above the lowest, microseconds since 1970 at which it was queued, and id."""
WAITS = jobs.c.state == JobState.QUEUED
"""The condition of the jobs that wait."""
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class QueueKey:
    """What the queue is sorted by: higher priorities first, then the time of queueing, then ids."""

    priority: int
    queued_at: datetime
    id: str

    @classmethod
    def parse(cls, token: str) -> Self:
        """Return the key that a page token holds."""
        queued_at = _UNIX_EPOCH + timedelta(microseconds=int(token[3:19]))
        return cls(int(token[:3]) + LOWEST_PRIORITY, queued_at, token[19:])

    @property
    def token(self) -> str:
        """The key as a page token holds it."""
        since = (self.queued_at - _UNIX_EPOCH) // timedelta(microseconds=1)
        return f"{self.priority - LOWEST_PRIORITY:03}{since:016}{self.id}"

    @property
    def behind(self) -> ColumnElement[bool]:
        """The condition of the jobs behind it."""
        same = jobs.c.queued_at == self.queued_at
        later = or_(jobs.c.queued_at > self.queued_at, and_(same, jobs.c.id > self.id))
        return or_(jobs.c.priority < self.priority, and_(jobs.c.priority == self.priority, later))


@dataclass(frozen=True, slots=True)
class WaitingJob(TypedRow):
    """A job that waits."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    priority: int
    world_size: int
    layout: str
    queued_at: datetime | None
    demand: str | None
    lasts_seconds: float | None
    reason: Annotated[str | None, shown_reason]

    @property
    def key(self) -> QueueKey:
        """Its place in the order."""
        assert self.queued_at is not None, "a queued job has the time at which it was queued"
        return QueueKey(self.priority, self.queued_at, self.id)


def read_waiting(
    connection: Connection, after: QueueKey | None, *, limit: int
) -> Sequence[WaitingJob]:
    """Return jobs in the order of the queue; the index alone is sorted."""
    waits = WAITS if after is None else WAITS & after.behind
    ids = select(jobs.c.id).where(waits).order_by(*ORDER).limit(limit)
    return WaitingJob.all(
        connection, WaitingJob.select().where(jobs.c.id.in_(ids)).order_by(*ORDER)
    )


def count_up_to(connection: Connection, key: QueueKey) -> tuple[int, int]:
    """Return how many jobs wait up to a key, that of the key included, as `count_waiting`."""
    return count_waiting(connection, ~key.behind)


def count_waiting(connection: Connection, condition: ColumnElement[bool]) -> tuple[int, int]:
    """Return how many jobs wait, and how many of these in groups; only those are forecast."""
    query = select(func.count(), func.count(jobs.c.demand)).where(WAITS, condition)
    waiting, grouped = connection.execute(query).one()
    return waiting, grouped
