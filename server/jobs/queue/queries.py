"""Reads of the queue: pages of waiting jobs, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, func, select

from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import shown_reason
from server.core.database.tables import jobs
from server.jobs.queue.order import TAG, QueueKey, QueueOrder


@dataclass(frozen=True, slots=True)
class WaitingJob(TypedRow):
    """A waiting job."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    project: str
    priority: int
    world_size: int
    layout: str
    queued_at: datetime | None
    demand: str | None
    lasts_seconds: float | None
    reason: Annotated[str | None, shown_reason]
    tag: Annotated[float, TAG]

    @property
    def key(self) -> QueueKey:
        """Sort key of the job in the queue."""
        assert self.queued_at is not None, "a queued job has the time at which it was queued"
        return QueueKey(self.priority, self.tag, self.queued_at, self.id)


def read_waiting(
    connection: Connection, order: QueueOrder, after: QueueKey | None, *, limit: int
) -> Sequence[WaitingJob]:
    """Return at most `limit` jobs behind a key, in the order of the queue."""
    behind = () if after is None else (order.behind(after),)
    page = order.first(limit, *behind)
    query = WaitingJob.select().join(page.line, page.line.c.id == jobs.c.id)
    return WaitingJob.all(connection, query.order_by(*page.by))


def find_waiting(connection: Connection, order: QueueOrder, job_id: str) -> WaitingJob | None:
    """Return a waiting job; None if the job does not wait."""
    line = order.line
    query = WaitingJob.select().join(line, line.c.id == jobs.c.id).where(jobs.c.id == job_id)
    return WaitingJob.one_or_none(connection, query)


def count_up_to(connection: Connection, order: QueueOrder, key: QueueKey) -> tuple[int, int]:
    """Return the number of waiting jobs, and of grouped jobs, up to and including a key.

    A forecast includes only jobs in groups.
    """
    line = order.line
    counts = select(func.count(), func.count(line.c.demand)).select_from(line)
    query = counts.where(~order.behind(key))
    waiting, grouped = connection.execute(query).one()
    return waiting, grouped
