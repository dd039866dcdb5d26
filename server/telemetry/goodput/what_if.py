"""Predicts the effect of another save interval on a job by replaying the job's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

import numpy as np
from sqlalchemy import Connection, Table, func, select

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import attempts, checkpoints, events, jobs
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.jobs.attempts.lineage import NEVER
from server.telemetry.goodput.queries import JobRecords, milliseconds, records_of
from server.telemetry.goodput.reliability import daly_interval, expected_ettr
from server.telemetry.goodput.replay import RecordedRun, TrainedAttempt, best_interval, replay
from server.telemetry.goodput.step_sums import SAVE, RecordedSteps, store_step_sums
from server.telemetry.metrics.points import MAX_SUMMED
from server.telemetry.metrics.series import find_series, read_values
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.goodput import IntervalOutcome, SaveIntervalWhatIf, TimeCategory
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import AttemptCause, AttemptOutcome, AttemptState, JobState

SAVE_TIME = "checkpoint/save_seconds"
"""Series of the times from the start of a save to its commit, with a point for each save."""
WAITS = (TimeCategory.QUEUED, TimeCategory.REQUEUED, TimeCategory.BACKOFF)
"""Categories of the time in which a job waits for a placement."""


@dataclass(frozen=True, slots=True)
class _Attempt(TypedRow):
    table: ClassVar[Table] = attempts
    number: int
    cause: AttemptCause
    state: AttemptState
    outcome: AttemptOutcome | None
    parent_named: bool
    saved_at: Annotated[
        datetime | None,
        select(func.max(checkpoints.c.created_at))
        .where(checkpoints.c.attempt_id == attempts.c.id)
        .correlate(attempts)
        .scalar_subquery(),
    ]
    """Time at which the attempt's newest checkpoint was written."""
    job_state: Annotated[JobState, jobs.c.state]
    progress: Annotated[Progress, jobs.c.progress]


def save_interval_what_if(
    context: Context, job_id: str, interval_steps: int, *, scope: Scope
) -> SaveIntervalWhatIf:
    """Replay a job with another number of steps between two saves, if its steps are known.

    Raises:
        NotFoundError: no job has this id.
    """
    with context.database.read() as connection:
        check_job(connection, job_id, scope=scope)
    store_step_sums(context, job_id)
    with context.database.read() as connection:
        records = records_of(context, connection, job_id)
        query = _Attempt.select().join(jobs, jobs.c.id == attempts.c.job_id)
        rows = _Attempt.all(connection, query.where(attempts.c.job_id == job_id))
        stall, save = _save_times(connection, records.recorded)
        chosen = _chosen_starts(connection, job_id, rows)
    by_number = {row.number: row for row in rows}
    spent, wall = records.ledger.spent, sum(records.ledger.spent.values())
    trained = sorted(
        (one for one in records.recorded if one.number in records.trainings),
        key=lambda one: one.number,
    )
    replayable, earlier = [], 0
    for one in trained:
        # An attempt that ended before its first step passes its start on to the next attempt.
        is_chosen = any(earlier < number <= one.number for number in chosen)
        replayable.append(_trained(records, one, by_number[one.number], chosen=is_chosen))
        earlier = one.number
    kept = [
        max(min(one.until, attempt.last_step) - one.start_step, 0)
        for one, attempt in zip(trained, replayable, strict=True)
    ]
    recorded = IntervalOutcome(
        wall_milliseconds=wall,
        goodput=spent[TimeCategory.PRODUCTIVE] / wall if wall else None,
        expected_ettr=None,
        kept_steps=sum(kept),
        lost_steps=sum(each.last_step - each.start_step for each in replayable) - sum(kept),
        lost_milliseconds=spent[TimeCategory.LOST],
        save_stall_milliseconds=spent[TimeCategory.SAVE_STALL],
    )
    answer = SaveIntervalWhatIf(
        job_id=job_id,
        recorded=recorded,
        interval_steps=interval_steps,
        replayed=None,
        best_interval_steps=None,
        best=None,
        stall_seconds=stall / 1000,
        daly_interval_steps=None,
    )
    steps_in_all = rows[0].progress.steps if trained else None
    if steps_in_all is None:
        return answer
    run = RecordedRun(
        attempts=replayable,
        steps=steps_in_all,
        wall=wall,
        succeeded=rows[0].job_state == JobState.SUCCEEDED,
        stall=stall,
        save=save,
    )
    return answer.model_copy(update=_replays(run, records, kept=kept, interval=interval_steps))


def _replays(
    run: RecordedRun, records: JobRecords, *, kept: Sequence[int], interval: int
) -> dict[str, Any]:
    """Return the answer's fields that need a replay; `kept` counts the kept steps by attempt."""
    ledger = records.ledger
    paces = [run.step_milliseconds(attempt) for attempt in run.attempts]
    time_kept = sum(steps * pace for steps, pace in zip(kept, paces, strict=True))
    # The rest of the time of kept steps is waiting for data.
    productive = ledger.spent[TimeCategory.PRODUCTIVE]
    productive_share = min(productive / time_kept, 1.0) if time_kept else 0.0
    best = best_interval(run, productive=productive_share)

    def outcome(steps: int) -> IntervalOutcome:
        replayed = replay(run, steps)
        return IntervalOutcome(
            wall_milliseconds=replayed.wall,
            goodput=replayed.goodput(productive_share),
            expected_ettr=_expected_ettr(records, steps * max(paces), stall=run.stall),
            kept_steps=replayed.kept_steps,
            lost_steps=replayed.lost_steps,
            lost_milliseconds=replayed.lost,
            save_stall_milliseconds=replayed.stalls,
        )

    daly = None
    if run.stall and ledger.failures:
        best_time = daly_interval(run.stall, ledger.scheduled / ledger.failures)
        daly = max(round(best_time / max(paces)), 1)
    return {
        "replayed": outcome(interval),
        "best_interval_steps": best,
        "best": outcome(best),
        "daly_interval_steps": daly,
    }


def _chosen_starts(connection: Connection, job_id: str, rows: Sequence[_Attempt]) -> set[int]:
    """Return the numbers of the attempts whose start a rollback or a person chose."""
    event = events.c
    failed = select(event.attempt).where(
        event.job_id == job_id, event.kind == EventKind.ROLLED_BACK
    )
    rolled_back = {number + 1 for number in connection.scalars(failed)}
    return {
        row.number
        for row in rows
        if row.parent_named or (row.cause == AttemptCause.RETRY and row.number in rolled_back)
    }


def _trained(
    records: JobRecords, one: RecordedSteps, row: _Attempt, *, chosen: bool
) -> TrainedAttempt:
    training = records.trainings[one.number]
    left_orderly = row.outcome in (AttemptOutcome.SUCCEEDED, AttemptOutcome.STOPPED)
    saved_after = milliseconds(row.saved_at) - training.began if row.saved_at else 0
    return TrainedAttempt(
        began=training.began - milliseconds(records.since),
        start_step=one.start_step,
        last_step=training.last_step,
        training=training.length,
        lived=max(training.length, saved_after),
        compilation=training.compiled,
        stalls=training.save_stall,
        loses_tail=row.state == AttemptState.ENDED and not left_orderly,
        chosen_start=chosen,
    )


def _expected_ettr(records: JobRecords, interval: float, *, stall: float) -> float | None:
    """Return the expected ETTR of a long run of a job; None without failures or saves.

    The interval and the stall are in milliseconds.
    """
    ledger, attempts = records.ledger, len(records.recorded)
    if not ledger.failures or not ledger.scheduled or not interval:
        return None
    compiled = sum(training.compiled for training in records.trainings.values())
    return expected_ettr(
        mttf=ledger.scheduled / ledger.failures,
        interval=interval,
        stall=stall,
        startup=(ledger.spent[TimeCategory.STARTUP] + compiled) / attempts,
        queue=sum(ledger.spent[each] for each in WAITS) / attempts,
    )


def _save_times(connection: Connection, recorded: Sequence[RecordedSteps]) -> tuple[float, float]:
    """Return the mean stall and the mean time to the commit of a save, in milliseconds.

    The save before an attempt's first step belongs to the start-up. The record of the first step
    contains the stall of this save, and is therefore left out. Both means are 0 if no other save is
    recorded.
    """
    starts = {one.attempt_id: one.start_step for one in recorded}
    ids = find_series(connection, list(starts), (SAVE, SAVE_TIME))
    values = read_values(connection, list(ids.values()), first=0, last=NEVER)
    means = []
    for name in (SAVE, SAVE_TIME):
        found = [np.empty(0)]
        for (attempt_id, of), key in ids.items():
            if of == name and key in values:
                steps, seconds = values[key]
                after_first = steps > starts[attempt_id] + 1
                found.append(seconds[after_first & (seconds >= 0) & (seconds < MAX_SUMMED)])
        joined = np.concatenate(found)
        means.append(float(joined.mean() * 1000) if len(joined) else 0.0)
    return means[0], means[1]
