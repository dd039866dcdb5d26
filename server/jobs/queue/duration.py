"""The expected duration of a queued job's next attempt, from the pace of earlier attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Annotated, ClassVar

import orjson
from sqlalchemy import Connection, Table, Text, and_, func, literal, select, type_coerce

from server.cluster.placement.demand import CAUTION
from server.cluster.placement.pace import pace_digest
from server.core.database.column_types import Lazy, StoredRecord, UtcDateTime
from server.core.database.rows import TypedRow
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.errors import NotFoundError, UnreadableError
from server.core.visibility.scope import Scope
from server.jobs.attempts.parent import ParentCheckpoint, newest_of_jobs, parent_of_launch
from server.jobs.queue.queries import NewJob
from trainyard.protocol.states import AttemptOutcome
from trainyard.spec.auto import DeviceKind
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

MAX_CONSIDERED = 20
"""Number of a job's newest attempts that are searched for an attempt with the same layout."""
HISTORY = 20
"""Number of attempts from which a new job's duration is estimated: the newest attempts with the
same training part.
"""
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Duration:
    """An expected duration, from placement to end, on one kind of slots."""

    seconds: float
    device: DeviceKind
    device_name: str | None
    """Name of the device; None if unknown."""


@dataclass(frozen=True, slots=True)
class _Former(TypedRow):
    """An ended attempt that trained."""

    table: ClassVar[Table] = attempts
    job_id: str
    project: Annotated[str, jobs.c.project]
    pace_digest: str | None
    layout: Annotated[StoredRecord[Layout], type_coerce(attempts.c.layout, Lazy(Layout))]
    outcome: Annotated[AttemptOutcome, attempts.c.outcome]
    device: DeviceKind
    hardware: Annotated[str | None, type_coerce(nodes.c.hardware, Text).label("hardware")]
    """Hardware of the node of rank 0, as stored JSON text."""
    start_step: int
    last_step: int
    created_at: datetime
    first_step_at: Annotated[datetime, attempts.c.started_at]
    left_at: Annotated[datetime, attempts.c.ended_at]

    @property
    def kind(self) -> tuple[DeviceKind, str | None]:
        """Device kind and device name of the attempt's slots."""
        return self.device, self.hardware and orjson.loads(self.hardware)["device_name"]

    def seconds_of(self, steps: int | None) -> float:
        """Return the duration, in seconds, of an attempt with `steps` steps at this attempt's pace.

        The duration counts from placement to end. If `steps` is None, the result is this attempt's
        own duration. The time per step is wall time, including saves, validation and the time to
        leave.
        """
        if steps is None:
            return (self.left_at - self.created_at).total_seconds()
        startup = (self.first_step_at - self.created_at).total_seconds()
        trained = (self.left_at - self.first_step_at).total_seconds()
        return startup + steps * trained / (self.last_step - self.start_step)


_FORMER = (
    _Former.select()
    .join(jobs, jobs.c.id == attempts.c.job_id)
    .outerjoin(
        attempt_nodes,
        and_(attempt_nodes.c.attempt_id == attempts.c.id, attempt_nodes.c.node_rank == 0),
    )
    .outerjoin(nodes, nodes.c.name == attempt_nodes.c.node)
    .where(attempts.c.started_at.is_not(None), attempts.c.ended_at.is_not(None))
)


def expected_durations(
    connection: Connection, queued: Collection[NewJob]
) -> Mapping[str, Duration]:
    """Return expected durations by job id; jobs of unknown pace are omitted.

    If a job ran before, the pace comes from its own newest attempt with the same layout. For a new
    job, the pace comes from attempts with the same training part in the same project
    (docs/lifecycle-placing.md, 5): a job must not show what runs in other projects.
    The pace is unknown if the job itself, or the layout of one of these attempts, is unreadable.
    """
    new = [each for each in queued if each.attempt == 0]
    again = [each for each in queued if each.attempt > 0]
    found = {**_of_own_attempts(connection, again), **_of_history(connection, new)}
    return {job_id: duration for job_id, duration in found.items() if duration is not None}


def with_newer_history(
    connection: Connection, waiting: Mapping[str, str], *, since: datetime
) -> Sequence[str]:
    """Return the ids of jobs for which an attempt with the same training part ended since `since`.

    The attempt may belong to any job. Failed attempts do not count.

    `waiting` has the pace digests of the jobs by id.
    """
    ended = select(attempts.c.pace_digest).distinct()
    here = attempts.c.pace_digest.in_({*waiting.values()})
    counts = attempts.c.outcome != AttemptOutcome.FAILED
    found = {*connection.scalars(ended.where(here, attempts.c.ended_at >= since, counts))}
    return [job_id for job_id, digest in waiting.items() if digest in found]


def _of_history(connection: Connection, queued: Collection[NewJob]) -> dict[str, Duration | None]:
    """Return the expected durations of jobs that never ran (see `expected_durations`)."""
    if not any(each.pace_digest for each in queued):
        return {}
    parts = select(jobs.c.pace_digest.label("digest"), jobs.c.project).distinct()
    part = parts.where(jobs.c.id.in_([each.id for each in queued])).subquery("part")
    ended = (
        select(attempts.c.ended_at)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(
            attempts.c.pace_digest == part.c.digest,
            jobs.c.project == part.c.project,
            attempts.c.ended_at.is_not(None),
        )
    )
    oldest = ended.order_by(attempts.c.ended_at.desc()).limit(1).offset(HISTORY - 1)
    # If fewer than `HISTORY` attempts have ended, all of them count.
    since = func.coalesce(oldest.correlate(part).scalar_subquery(), literal(_FIRST, UtcDateTime))
    limits = select(part.c.digest, part.c.project, since.label("since")).subquery("limits")
    newest = (
        _FORMER.join(
            limits,
            and_(attempts.c.pace_digest == limits.c.digest, attempts.c.ended_at >= limits.c.since),
        )
        .where(jobs.c.project == limits.c.project)
        .order_by(attempts.c.ended_at.desc(), attempts.c.id.desc())
    )
    found: defaultdict[tuple[str | None, str], list[_Former]] = defaultdict(list)
    for attempt in _Former.all(connection, newest):
        found[attempt.pace_digest, attempt.project].append(attempt)
    return {each.id: _of_new(each, found[each.pace_digest, each.project]) for each in queued}


def _of_new(queued: NewJob, former: Sequence[_Former]) -> Duration | None:
    if not former:
        return None
    try:
        spec, launch = queued.read()
        steps = spec.total_steps
        left = None if steps is None else max(steps - (queued.fork_step or 0), 0)
        return _shown_by(former, launch.layout, left)
    except UnreadableError:
        return None


def duration_of_spec(connection: Connection, spec: JobSpec, *, scope: Scope) -> Duration | None:
    """Return the expected duration of a job that would be submitted now with this spec.

    The pace comes from jobs of the spec's project, as for a submitted job.
    """
    of_part = _FORMER.where(
        attempts.c.pace_digest == pace_digest(spec),
        jobs.c.project == spec.project,
        scope.filter(jobs.c.project),
    )
    newest = of_part.order_by(attempts.c.ended_at.desc(), attempts.c.id.desc()).limit(HISTORY)
    try:
        steps = spec.total_steps
        left = None if steps is None else steps - spec.checkpoint.start_step
        return _shown_by(_Former.all(connection, newest), spec.layout(), left)
    except UnreadableError:
        return None


def _shown_by(former: Sequence[_Former], layout: Layout, steps: int | None) -> Duration | None:
    """Return the expected duration of `steps` on a layout, from earlier attempts on this layout.

    The attempts are sorted newest first. If `steps` is None, only succeeded attempts count.

    Raises:
        UnreadableError: the layout of an attempt cannot be read.
    """
    same = [
        each
        for each in former
        if each.outcome != AttemptOutcome.FAILED
        and each.layout.read(f"layout of an attempt of job {each.job_id}") == layout
    ]
    if steps is None:
        same = [each for each in same if each.outcome == AttemptOutcome.SUCCEEDED]
    else:
        same = [each for each in same if each.last_step > each.start_step]
    if not same:
        return None
    kind = same[0].kind
    lasted = [each.seconds_of(steps) for each in same if each.kind == kind]
    return Duration(max(median(lasted), max(lasted) / CAUTION), *kind)


def _of_own_attempts(
    connection: Connection, queued: Collection[NewJob]
) -> dict[str, Duration | None]:
    """Return the expected durations of jobs that ran before, from their own newest attempts."""
    if not queued:
        return {}
    paced = _FORMER.where(
        attempts.c.job_id.in_([each.id for each in queued]),
        attempts.c.number > jobs.c.attempt - MAX_CONSIDERED,
        attempts.c.last_step > attempts.c.start_step,
    ).order_by(attempts.c.job_id, attempts.c.number.desc())
    former: defaultdict[str, list[_Former]] = defaultdict(list)
    for attempt in _Former.all(connection, paced):
        former[attempt.job_id].append(attempt)
    newest = newest_of_jobs(connection, former.keys())
    return {
        each.id: _of_again(connection, each, former=former[each.id], newest=newest[each.id])
        for each in queued
        if each.id in former
    }


def _of_again(
    connection: Connection,
    queued: NewJob,
    *,
    former: Sequence[_Former],
    newest: ParentCheckpoint | None,
) -> Duration | None:
    """Return the expected duration of a job's next launch; the first of `former` is the newest."""
    try:
        spec, launch = queued.read()
        steps = launch.overrides.apply(spec).total_steps
        parent = parent_of_launch(connection, queued, launch, newest=newest)
        of = f"layout of a former attempt of job {queued.id}"
        paced = next((each for each in former if each.layout.read(of) == launch.layout), None)
    except (NotFoundError, UnreadableError):
        return None
    if paced is None or steps is None:
        return None
    return Duration(paced.seconds_of(max(steps - parent.step, 0)), *paced.kind)
