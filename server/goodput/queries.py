"""The ledger of a job, read from its events, attempts and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import Connection, Table, func, select

from server.attempts.lineage import NEVER, attempts_of, lineage_of
from server.context import Context
from server.database.rows import TypedRow
from server.database.tables import attempts, checkpoints, events, jobs
from server.errors import NotFoundError
from server.goodput.ledger import Ledger, Mark, Training, ledger_of
from server.goodput.step_sums import RecordedSteps, read_trainings, store_step_sums
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.goodput import WORDS, CategoryTime, GoodputView, TimeCategory
from trainyard.protocol.states import (
    TERMINAL_JOB_STATES,
    AttemptOutcome,
    AttemptState,
    JobState,
)
from trainyard.run.failures import FailureReason

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

KINDS = (
    EventKind.QUEUED,
    EventKind.RESUME_REQUESTED,
    EventKind.PLACED,
    EventKind.STOP_REQUESTED,
    EventKind.STOP_AGREED,
    EventKind.CANCEL_REQUESTED,
    EventKind.UNREACHABLE,
    EventKind.REACHABLE,
    EventKind.NODE_ENDED,
    EventKind.ATTEMPT_ENDED,
    EventKind.JOB_ENDED,
)
"""Events that may begin or end a category."""

EFFECTIVE = (
    TimeCategory.PRODUCTIVE,
    TimeCategory.DATA_WAIT,
    TimeCategory.SAVE_STALL,
    TimeCategory.VALIDATION,
)
"""Productive runtime of the effective training time ratio."""
UNAVAILABLE = (TimeCategory.PAUSED, TimeCategory.IDLE_AFTER_FAILURE)
"""Time in which the job neither ran nor could be scheduled."""


@dataclass(frozen=True, slots=True)
class _JobTimes(TypedRow):
    """A job's first and last moment."""

    table: ClassVar[Table] = jobs
    id: str
    state: JobState
    created_at: datetime
    ended_at: datetime | None


def goodput_view(context: Context, job_id: str) -> GoodputView:
    """Return the ledger of a job from its submission to its end, or to now.

    Raises:
        NotFoundError: no job has this id.
    """
    store_step_sums(context, job_id)
    with context.database.read() as connection:
        records = read_records(context, connection, job_id)
    return _view(records)


@dataclass(frozen=True, slots=True)
class JobRecords:
    """The ledger of a job, and what it was made of."""

    job_id: str
    since: datetime
    """Submission."""
    until: datetime
    """End, or now."""
    recorded: Sequence[RecordedSteps]
    """Its attempts, each with the last step that the job kept of it."""
    trainings: Mapping[int, Training]
    """The recorded steps by the number of their attempt."""
    ledger: Ledger


def read_records(context: Context, connection: Connection, job_id: str) -> JobRecords:
    """Return the ledger of a job from its submission to its end, or to now.

    Raises:
        NotFoundError: no job has this id.
    """
    job = _JobTimes.one_or_none(connection, _JobTimes.select().where(jobs.c.id == job_id))
    if job is None:
        raise NotFoundError(f"no job has the id {job_id!r}")
    ended = job.ended_at if job.state in TERMINAL_JOB_STATES else None
    since = job.created_at
    until = max(ended or context.now(), since)
    recorded = _recorded_steps(connection, job_id)
    trainings = read_trainings(connection, recorded)
    ledger = ledger_of(
        _marks(connection, job_id),
        trainings,
        start=milliseconds(since),
        end=milliseconds(until),
    )
    return JobRecords(job_id, since, until, recorded, trainings, ledger)


def _view(records: JobRecords) -> GoodputView:
    ledger = records.ledger
    spent = ledger.spent
    wall = sum(spent.values())
    available = wall - sum(spent[category] for category in UNAVAILABLE)
    effective = sum(spent[category] for category in EFFECTIVE)
    return GoodputView(
        job_id=records.job_id,
        since=records.since,
        until=records.until,
        wall_milliseconds=wall,
        categories=tuple(
            CategoryTime(category=category, words=WORDS[category], milliseconds=time)
            for category, time in spent.items()
        ),
        goodput=spent[TimeCategory.PRODUCTIVE] / wall if wall else None,
        ettr=effective / available if available else None,
        failures=ledger.failures,
        mttf_seconds=ledger.scheduled / 1000 / ledger.failures if ledger.failures else None,
    )


def milliseconds(at: datetime) -> int:
    """Return the Unix time in milliseconds."""
    return (at - EPOCH) // MILLISECOND


def _marks(connection: Connection, job_id: str) -> list[Mark]:
    columns = (events.c.at, events.c.kind, events.c.attempt, events.c.node, events.c.data)
    query = select(*columns).where(events.c.job_id == job_id, events.c.kind.in_(KINDS))
    rows = connection.execute(query.order_by(events.c.id))
    return [
        _mark(milliseconds(row.at), EventKind(row.kind), row.attempt, row.node, row.data)
        for row in rows
    ]


def _mark(
    at: int, kind: EventKind, attempt: int | None, node: str | None, data: dict[str, Any]
) -> Mark:
    # Not by the models of the data: an event of another version may have further fields.
    not_before, outcome = data.get("not_before"), data.get("outcome")
    failure = data.get("failure") or {}
    return Mark(
        at=at,
        kind=kind,
        attempt=attempt,
        node=node,
        not_before=milliseconds(datetime.fromisoformat(not_before)) if not_before else None,
        outcome=AttemptOutcome(outcome) if outcome else None,
        preempted=failure.get("reason") == FailureReason.PREEMPTED,
    )


def _recorded_steps(connection: Connection, job_id: str) -> list[RecordedSteps]:
    """Return each attempt of a job with the last step that the job kept of it.

    These are the steps along the lineage. Of an attempt that ended early, and that no later one has
    continued yet, they are those up to its newest checkpoint: no attempt can begin after it.
    """
    keys = attempts_of(connection, job_id)
    until = dict.fromkeys(keys, -1)
    until |= {segment.number: segment.until for segment in lineage_of(keys).segments}
    newest = max(keys, default=0)
    if newest and _ended_early(connection, keys[newest].id):
        saved = select(func.max(checkpoints.c.step)).where(
            checkpoints.c.attempt_id == keys[newest].id
        )
        step = connection.scalar(saved)
        until[newest] = keys[newest].start_step if step is None else step
    return [
        RecordedSteps(key.id, number, key.start_step, min(until[number], NEVER))
        for number, key in keys.items()
    ]


def _ended_early(connection: Connection, attempt_id: str) -> bool:
    row = connection.execute(
        select(attempts.c.state, attempts.c.outcome).where(attempts.c.id == attempt_id)
    ).one()
    return bool(row.state == AttemptState.ENDED and row.outcome != AttemptOutcome.SUCCEEDED)
