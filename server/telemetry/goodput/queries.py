"""Reads the ledger of a job from the job's events, attempts and metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, func, select

from server.core.context import Context
from server.core.database.column_types import text_of
from server.core.database.tables import attempts, checkpoints, events, jobs
from server.core.errors import NotFoundError
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.jobs.attempts.lineage import attempts_of_jobs, lineage_of
from server.telemetry.goodput.ledger import Ledger, Mark, Training, ledger_of
from server.telemetry.goodput.reliability import mean_time_to_failure
from server.telemetry.goodput.step_sums import RecordedSteps, read_trainings, store_step_sums
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.goodput import WORDS, CategoryTime, GoodputView, TimeCategory
from trainyard.protocol.states import TERMINAL_JOB_STATES, AttemptOutcome, AttemptState
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
"""Kinds of events that may start or end a category."""

EFFECTIVE = (
    TimeCategory.PRODUCTIVE,
    TimeCategory.DATA_WAIT,
    TimeCategory.SAVE_STALL,
    TimeCategory.VALIDATION,
)
"""Categories that count as productive runtime in the effective training time ratio (ETTR)."""
UNAVAILABLE = (TimeCategory.PAUSED, TimeCategory.IDLE_AFTER_FAILURE)
"""Categories of the time in which the job neither ran nor could be scheduled."""


def goodput_view(context: Context, job_id: str, *, scope: Scope) -> GoodputView:
    """Return the ledger of a job from its submission to its end, or to now.

    Raises:
        NotFoundError: no job has this id.
    """
    with context.database.read() as connection:
        check_job(connection, job_id, scope=scope)
    store_step_sums(context, job_id)
    with context.database.read() as connection:
        records = records_of(context, connection, job_id)
    ledger = records.ledger
    spent = ledger.spent
    wall = sum(spent.values())
    available = wall - sum(spent[category] for category in UNAVAILABLE)
    effective = sum(spent[category] for category in EFFECTIVE)
    is_known = bool(records.trainings) or not records.untimed
    return GoodputView(
        job_id=job_id,
        since=records.since,
        until=records.until,
        wall_milliseconds=wall,
        categories=tuple(
            CategoryTime(category=category, words=WORDS[category], milliseconds=time)
            for category, time in spent.items()
        ),
        goodput=spent[TimeCategory.PRODUCTIVE] / wall if wall and is_known else None,
        ettr=effective / available if available and is_known else None,
        **dict(mean_time_to_failure(ledger.scheduled / 1000, ledger.failures)),
    )


@dataclass(frozen=True, slots=True)
class JobRecords:
    """The ledger of a job, and the data from which it is computed."""

    since: datetime
    """Submission time of the job."""
    until: datetime
    """End time of the job, or now."""
    recorded: Sequence[RecordedSteps]
    """Attempts of the job, each with its last kept step."""
    trainings: Mapping[int, Training]
    """Recorded steps by attempt number."""
    untimed: Collection[int]
    """Numbers of the attempts that reported steps without times, as a program may do."""
    ledger: Ledger


def records_of(context: Context, connection: Connection, job_id: str) -> JobRecords:
    """Return the ledger of a job and the data from which it is computed.

    Raises:
        NotFoundError: no job has this id.
    """
    found = read_records(context, connection, [job_id])
    if job_id not in found:
        raise NotFoundError(f"no job has the id {job_id!r}")
    return found[job_id]


def read_records(
    context: Context, connection: Connection, job_ids: Collection[str]
) -> dict[str, JobRecords]:
    """Return ledgers by job id with a fixed number of queries; unknown jobs are omitted.

    Each ledger covers the time from the job's submission to its end, or to now.
    """
    job = jobs.c
    query = select(job.id, job.state, job.created_at, job.ended_at).where(job.id.in_(job_ids))
    rows = connection.execute(query).all()
    now = context.now()
    existing = [row.id for row in rows]
    recorded = _recorded_steps(connection, existing)
    trainings = read_trainings(connection, [one for own in recorded.values() for one in own])
    reached = _reached(connection, existing)
    marks = _marks(connection, existing)
    found = {}
    for job_id, state, since, ended_at in rows:
        until = max(since, (ended_at or now) if state in TERMINAL_JOB_STATES else now)
        own = recorded[job_id]
        by_number = {
            one.number: trainings[one.attempt_id] for one in own if one.attempt_id in trainings
        }
        untimed = reached[job_id] - by_number.keys()
        start, end = milliseconds(since), milliseconds(until)
        ledger = ledger_of(marks[job_id], by_number, start=start, end=end, untimed=untimed)
        found[job_id] = JobRecords(since, until, own, by_number, untimed, ledger)
    return found


def milliseconds(at: datetime) -> int:
    """Return a time as a Unix time in milliseconds."""
    return (at - EPOCH) // MILLISECOND


def _marks(connection: Connection, job_ids: Collection[str]) -> dict[str, list[Mark]]:
    event = events.c
    query = (
        select(event.job_id, event.at, event.kind, event.attempt, event.node, event.data)
        .where(event.job_id.in_(job_ids), event.kind.in_(KINDS))
        .order_by(event.id)
    )
    found: dict[str, list[Mark]] = {job_id: [] for job_id in job_ids}
    for job_id, at, kind, attempt, node, data in connection.execute(query):
        # Do not use the models of the data: an event of another version may have other fields.
        not_before, outcome = data.get("not_before"), data.get("outcome")
        mark = Mark(
            at=milliseconds(at),
            kind=EventKind(kind),
            attempt=attempt,
            node=node,
            not_before=milliseconds(datetime.fromisoformat(not_before)) if not_before else None,
            outcome=AttemptOutcome(outcome) if outcome else None,
            preempted=(data.get("failure") or {}).get("reason") == FailureReason.PREEMPTED,
        )
        found[job_id].append(mark)
    return found


def _recorded_steps(
    connection: Connection, job_ids: Collection[str]
) -> dict[str, list[RecordedSteps]]:
    """Return by job id the attempts of each job, each with its last kept step.

    A step is kept if it lies on the lineage. If the newest attempt ended early, only its steps up
    to its newest checkpoint are kept, because no later attempt can start after that checkpoint.
    """
    by_job = attempts_of_jobs(connection, job_ids)
    saved = _ended_early(connection, [keys[max(keys)].id for keys in by_job.values() if keys])
    found = {}
    for job_id, keys in by_job.items():
        until = dict.fromkeys(keys, -1)
        until |= {segment.number: segment.until for segment in lineage_of(keys).segments}
        for number, key in keys.items():
            if key.id in saved:
                step = saved[key.id]
                until[number] = key.start_step if step is None else step
        found[job_id] = [
            RecordedSteps(key.id, number, key.start_step, until[number])
            for number, key in keys.items()
        ]
    return found


def _reached(connection: Connection, job_ids: Collection[str]) -> Mapping[str, Set[int]]:
    """Return, by job id, the numbers of the attempts that ran a program and reported a step.

    Attempts of the built-in trainer are left out, because the trainer records the time of each step
    at the latest with the next logged step.
    """
    attempt = attempts.c
    query = (
        select(attempt.job_id, attempt.number)
        .join(jobs, jobs.c.id == attempt.job_id)
        .where(
            attempt.job_id.in_(job_ids),
            attempt.last_step > attempt.start_step,
            text_of(connection, jobs.c.spec, "program", "resume").is_not(None),
        )
    )
    found: dict[str, set[int]] = defaultdict(set)
    for job_id, number in connection.execute(query):
        found[job_id].add(number)
    return found


def _ended_early(connection: Connection, attempt_ids: Collection[str]) -> dict[str, int | None]:
    """Return by id the newest saved step of attempts that ended early; None if none was saved."""
    attempt = attempts.c
    saved = (
        select(func.max(checkpoints.c.step))
        .where(checkpoints.c.attempt_id == attempt.id)
        .scalar_subquery()
    )
    query = select(attempt.id, saved).where(
        attempt.id.in_(attempt_ids),
        attempt.state == AttemptState.ENDED,
        attempt.outcome.is_distinct_from(AttemptOutcome.SUCCEEDED),
    )
    return {row[0]: row[1] for row in connection.execute(query)}
