"""How long the next attempt of a queued job is expected to last, from the pace of a former one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table

from server.attempts.parent import parent_of_launch
from server.database.column_types import StoredRecord
from server.database.rows import TypedRow
from server.database.tables import attempts
from server.errors import NotFoundError, UnreadableError
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.spec.auto import DeviceKind
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

LOOKED_AT = 20
"""Newest attempts of a job among which one of the same layout is searched."""


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
    layout: Layout
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


def expected_duration(
    connection: Connection,
    job_id: str,
    spec: StoredRecord[JobSpec],
    pending: StoredRecord[PendingLaunch] | None,
    *,
    forked_from: str | None,
) -> Duration | None:
    """Return how long a launch is expected to last; None where no attempt shows its pace.

    The pace is that of the newest attempt that took a step with the same layout, on its own kind of
    slot. It is wall time, so the duration is long rather than short: a job that is backfilled must
    not last longer than expected.

    Args:
        connection: a transaction.
        job_id: the job, which is queued.
        spec: its submitted spec; of one that cannot be read no duration is expected.
        pending: its launch.
        forked_from: the checkpoint of another job from which it was forked.
    """
    if pending is None:
        return None
    try:
        launch = pending.read(f"launch of job {job_id}")
        steps = launch.overrides.apply(spec.read(f"spec of job {job_id}")).training.steps
        step = parent_of_launch(connection, job_id, launch, forked_from=forked_from).step
    except (NotFoundError, UnreadableError):
        return None
    former = _Former.all(
        connection,
        _Former.select()
        .where(
            attempts.c.job_id == job_id,
            attempts.c.started_at.is_not(None),
            attempts.c.ended_at.is_not(None),
            attempts.c.last_step > attempts.c.start_step,
        )
        .order_by(attempts.c.number.desc())
        .limit(LOOKED_AT),
    )
    paced = next((attempt for attempt in former if attempt.layout == launch.layout), None)
    if paced is None:
        return None
    left = max(steps - step, 0)
    return Duration(paced.startup_seconds + left * paced.step_seconds, paced.device)
