"""Reads of the queue: new jobs, pages of waiting jobs, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, exists, func, select

from server.core.database.column_types import StoredRecord
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import shown_reason
from server.core.database.tables import checkpoints, jobs
from server.core.errors import UnreadableError
from server.core.people.unix_accounts import owners_account
from server.jobs.queue.order import TAG, QueueKey, QueueOrder
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.spec.job import JobSpec


@dataclass(frozen=True, slots=True)
class NewJob(TypedRow):
    """A queued job, with the columns that determine its demand and its duration."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    queued_at: datetime | None
    spec: StoredRecord[JobSpec]
    pending: StoredRecord[PendingLaunch] | None
    project: str
    owner_id: str
    storage: str | None
    forked_from: str | None
    fork_step: int | None
    pace_digest: str | None
    attempt: int
    has_saved: Annotated[bool, exists().where(checkpoints.c.job_id == jobs.c.id)]
    account: Annotated[str | None, owners_account.label("account")]

    def read(self) -> tuple[JobSpec, PendingLaunch]:
        """Return the submitted spec and the pending launch.

        Raises:
            UnreadableError: another version wrote one of them, or there is no launch.
        """
        spec = self.spec.read(f"spec of job {self.id}")
        if self.pending is None:
            raise UnreadableError(f"the launch of job {self.id} cannot be read: it is null")
        return spec, self.pending.read(f"launch of job {self.id}")


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
    queued_at: Annotated[datetime, jobs.c.queued_at]
    demand: str | None
    lasts_seconds: float | None
    reason: Annotated[str | None, shown_reason]
    tag: Annotated[float, TAG]

    @property
    def key(self) -> QueueKey:
        """Sort key of the job in the queue."""
        return QueueKey(self.priority, self.tag, self.queued_at, self.id)


def read_waiting(
    connection: Connection, order: QueueOrder, after: QueueKey | None, *, limit: int
) -> Sequence[WaitingJob]:
    """Return at most `limit` jobs behind a key, in the order of the queue."""
    page = order.first(limit, *([] if after is None else [order.behind(after)]))
    query = WaitingJob.select().join(page.line, page.line.c.id == jobs.c.id)
    return WaitingJob.all(connection, query.order_by(*page.by))


def find_waiting(connection: Connection, order: QueueOrder, job_id: str) -> WaitingJob | None:
    """Return a waiting job; None if the job does not wait."""
    line = order.line
    query = WaitingJob.select().join(line, line.c.id == jobs.c.id).where(jobs.c.id == job_id)
    return WaitingJob.one_or_none(connection, query)


def count_up_to(connection: Connection, order: QueueOrder, key: QueueKey) -> tuple[int, int]:
    """Return the number of waiting jobs, and of grouped jobs, up to and including a key."""
    counts = select(func.count(), func.count(order.line.c.demand)).where(~order.behind(key))
    waiting, grouped = connection.execute(counts.select_from(order.line)).one()
    return waiting, grouped
