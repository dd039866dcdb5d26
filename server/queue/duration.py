"""How long the next attempt of a queued job is expected to last, from the pace of a former one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Protocol

from sqlalchemy import Connection, Table, type_coerce

from server.attempts.parent import ParentCheckpoint, newest_of_jobs, parent_of_launch
from server.database.column_types import Lazy, StoredRecord
from server.database.rows import TypedRow
from server.database.tables import attempts, jobs
from server.errors import NotFoundError, UnreadableError
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.spec.auto import DeviceKind
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

LOOKED_AT = 20
"""Newest attempts of a job among which one that took steps with the same layout is searched."""


class QueuedLaunch(Protocol):
    """What is read of a job that waits."""

    @property
    def id(self) -> str: ...
    @property
    def spec(self) -> StoredRecord[JobSpec]: ...
    @property
    def pending(self) -> StoredRecord[PendingLaunch] | None: ...
    @property
    def forked_from(self) -> str | None: ...


@dataclass(frozen=True)
class Duration:
    """An expected duration."""

    seconds: float
    """From placement to end."""
    device: DeviceKind
    """Kind of slot on which it holds."""


@dataclass(frozen=True, slots=True)
class _Former(TypedRow):
    """An attempt that took steps and ended."""

    table: ClassVar[Table] = attempts
    job_id: str
    layout: Annotated[StoredRecord[Layout], type_coerce(attempts.c.layout, Lazy(Layout))]
    device: DeviceKind
    start_step: int
    last_step: int
    created_at: datetime
    first_step_at: Annotated[datetime, attempts.c.started_at]
    left_at: Annotated[datetime, attempts.c.ended_at]

    @property
    def startup_seconds(self) -> float:
        """Time from its placement until it trained."""
        return (self.first_step_at - self.created_at).total_seconds()

    @property
    def step_seconds(self) -> float:
        """Wall time of a step, saves and validation included, and the time to leave."""
        return (self.left_at - self.first_step_at).total_seconds() / (
            self.last_step - self.start_step
        )


def expected_durations(
    connection: Connection, queued: Collection[QueuedLaunch]
) -> Mapping[str, Duration | None]:
    """Return by job id how long launches are expected to last; None where nothing shows their pace.

    The pace is that of the newest attempt that took a step with the same layout, on its own kind of
    slot. It is wall time, so the duration is long rather than short: a job that is backfilled must
    not last longer than expected. Of a job that cannot be read no duration is expected, nor where
    the layout of such an attempt cannot.

    Args:
        connection: a transaction.
        queued: jobs that wait for another attempt.
    """
    former: dict[str, list[_Former]] = {each.id: [] for each in queued}
    if not former:
        return {}
    paced = (
        _Former.select()
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(
            attempts.c.job_id.in_(former),
            attempts.c.number > jobs.c.attempt - LOOKED_AT,
            attempts.c.started_at.is_not(None),
            attempts.c.ended_at.is_not(None),
            attempts.c.last_step > attempts.c.start_step,
        )
        .order_by(attempts.c.job_id, attempts.c.number.desc())
    )
    for attempt in _Former.all(connection, paced):
        former[attempt.job_id].append(attempt)
    newest = newest_of_jobs(connection, [job_id for job_id, found in former.items() if found])
    return {
        each.id: _duration(connection, each, former[each.id], newest.get(each.id))
        for each in queued
    }


def _duration(
    connection: Connection,
    queued: QueuedLaunch,
    former: Sequence[_Former],
    newest: ParentCheckpoint | None,
) -> Duration | None:
    """Return how long a launch is expected to last.

    Args:
        connection: a transaction.
        queued: the job.
        former: its attempts that took steps and ended, the newest first.
        newest: its newest checkpoint.
    """
    if queued.pending is None or not former:
        return None
    try:
        launch = queued.pending.read(f"launch of job {queued.id}")
        steps = launch.overrides.apply(queued.spec.read(f"spec of job {queued.id}")).total_steps
        forked = queued.forked_from
        parent = parent_of_launch(connection, queued.id, launch, forked_from=forked, newest=newest)
        of = f"layout of a former attempt of job {queued.id}"
        paced = next((each for each in former if each.layout.read(of) == launch.layout), None)
    except (NotFoundError, UnreadableError):
        return None
    if paced is None or steps is None:
        return None
    left = max(steps - parent.step, 0)
    return Duration(paced.startup_seconds + left * paced.step_seconds, paced.device)
