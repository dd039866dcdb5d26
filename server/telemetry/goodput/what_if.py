"""Predicts the effect of another save interval on a job by replaying the job's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

import numpy as np
from sqlalchemy import Connection, Table, func, select

from server.core.context import Context
from server.core.database.metric_and_log_tables import metric_series
from server.core.database.rows import TypedRow
from server.core.database.tables import attempts, checkpoints, jobs
from server.jobs.attempts.lineage import NEVER
from server.telemetry.goodput.ledger import Training
from server.telemetry.goodput.queries import JobRecords, milliseconds, records_of
from server.telemetry.goodput.reliability import daly_interval, expected_ettr
from server.telemetry.goodput.replay import (
    RecordedRun,
    Replayed,
    TrainedAttempt,
    best_interval,
    goodput_of,
    replay,
)
from server.telemetry.goodput.step_sums import SAVE, RecordedSteps, store_step_sums
from server.telemetry.metrics.points import MAX_SUMMED
from server.telemetry.metrics.series import read_values
from trainyard.protocol.goodput import IntervalOutcome, SaveIntervalWhatIf, TimeCategory
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import AttemptOutcome, AttemptState, JobState

SAVE_TIME = "checkpoint/save_seconds"
"""Series of the times from the start of a save to its commit, with a point for each save."""


WAITS = (TimeCategory.QUEUED, TimeCategory.REQUEUED, TimeCategory.BACKOFF)
"""Categories of the time in which a job waits for a placement."""


@dataclass(frozen=True, slots=True)
class _Attempt(TypedRow):
    """An attempt with the fields that a replay reads."""

    table: ClassVar[Table] = attempts
    number: int
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


def save_interval_what_if(context: Context, job_id: str, interval_steps: int) -> SaveIntervalWhatIf:
    """Replay a job with another number of steps between two saves.

    Raises:
        NotFoundError: no job has this id.
    """
    store_step_sums(context, job_id)
    with context.database.read() as connection:
        records = records_of(context, connection, job_id)
        query = _Attempt.select().join(jobs, jobs.c.id == attempts.c.job_id)
        rows = _Attempt.all(connection, query.where(attempts.c.job_id == job_id))
        stall, save = _save_times(connection, records.recorded)
    attempts_by_number = {row.number: row for row in rows}
    trained = [
        (one, records.trainings[one.number], attempts_by_number[one.number])
        for one in sorted(records.recorded, key=lambda one: one.number)
        if one.number in records.trainings
    ]
    spent = records.ledger.spent
    wall = sum(spent.values())
    recorded = _recorded(trained, wall=wall, spent=spent)
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
        attempts=[_trained(records, *each) for each in trained],
        steps=steps_in_all,
        wall=wall,
        succeeded=rows[0].job_state == JobState.SUCCEEDED,
        stall=stall,
        save=save,
    )
    productive = _productive_share(run, trained, spent[TimeCategory.PRODUCTIVE])
    best = best_interval(run, productive=productive)
    losses = _Losses.of(run, records)

    def outcome(steps: int) -> IntervalOutcome:
        expected = losses.expected_ettr(steps) if losses else None
        return _outcome(replay(run, steps), productive, expected)

    changes = {
        "replayed": outcome(interval_steps),
        "best_interval_steps": best,
        "best": outcome(best),
        "daly_interval_steps": losses.daly_steps if losses else None,
    }
    return answer.model_copy(update=changes)


def _trained(
    records: JobRecords, one: RecordedSteps, training: Training, row: _Attempt
) -> TrainedAttempt:
    ended = row.state == AttemptState.ENDED
    left_orderly = row.outcome in (AttemptOutcome.SUCCEEDED, AttemptOutcome.STOPPED)
    return TrainedAttempt(
        began=training.began - milliseconds(records.since),
        start_step=one.start_step,
        last_step=training.last_step,
        training=training.length,
        lived=max(
            training.length, milliseconds(row.saved_at) - training.began if row.saved_at else 0
        ),
        compilation=training.compiled,
        stalls=training.save_stall,
        loses_tail=ended and not left_orderly,
        chosen_start=row.parent_named,
    )


def _productive_share(
    run: RecordedRun,
    trained: Sequence[tuple[RecordedSteps, Training, _Attempt]],
    productive: int,
) -> float:
    """Return the productive share of the time of kept steps; the rest is waiting for data."""
    kept = sum(
        _kept_steps(one, training) * run.step_milliseconds(attempt)
        for (one, training, _), attempt in zip(trained, run.attempts, strict=True)
    )
    return min(productive / kept, 1.0) if kept else 0.0


def _kept_steps(one: RecordedSteps, training: Training) -> int:
    return max(min(one.until, training.last_step) - one.start_step, 0)


def _recorded(
    trained: Sequence[tuple[RecordedSteps, Training, _Attempt]],
    *,
    wall: int,
    spent: Mapping[TimeCategory, int],
) -> IntervalOutcome:
    taken = sum(training.last_step - one.start_step for one, training, _ in trained)
    kept = sum(_kept_steps(one, training) for one, training, _ in trained)
    return IntervalOutcome(
        wall_milliseconds=wall,
        goodput=spent[TimeCategory.PRODUCTIVE] / wall if wall else None,
        expected_ettr=None,
        kept_steps=kept,
        lost_steps=taken - kept,
        lost_milliseconds=spent[TimeCategory.LOST],
        save_stall_milliseconds=spent[TimeCategory.SAVE_STALL],
    )


def _outcome(replayed: Replayed, productive: float, expected: float | None) -> IntervalOutcome:
    wall = replayed.wall
    return IntervalOutcome(
        wall_milliseconds=wall,
        goodput=goodput_of(replayed, productive),
        expected_ettr=expected,
        kept_steps=replayed.kept_steps,
        lost_steps=replayed.lost_steps,
        lost_milliseconds=replayed.lost,
        save_stall_milliseconds=replayed.stalls,
    )


@dataclass(frozen=True, slots=True)
class _Losses:
    """Costs of failures and saves in milliseconds, as the published estimates define them."""

    mttf: float
    startup: float
    """Time from the placement to the first step, plus compilation."""
    queue: float
    """Mean wait for slots before an attempt."""
    stall: float
    step: float

    @classmethod
    def of(cls, run: RecordedRun, records: JobRecords) -> _Losses | None:
        """Return the costs of a job's failures and saves; None without a failure."""
        ledger = records.ledger
        if not ledger.failures:
            return None
        spent, attempts = ledger.spent, len(records.recorded)
        compiled = sum(training.compiled for training in records.trainings.values())
        return cls(
            mttf=ledger.scheduled / ledger.failures,
            startup=(spent[TimeCategory.STARTUP] + compiled) / attempts,
            queue=sum(spent[each] for each in WAITS) / attempts,
            stall=run.stall,
            step=max(run.step_milliseconds(attempt) for attempt in run.attempts),
        )

    def expected_ettr(self, interval_steps: int) -> float | None:
        """Return the expected ETTR of a long run with this save interval; None without saves."""
        if not interval_steps or not self.mttf:
            return None
        return expected_ettr(
            mttf=self.mttf,
            interval=interval_steps * self.step,
            stall=self.stall,
            startup=self.startup,
            queue=self.queue,
        )

    @property
    def daly_steps(self) -> int | None:
        """Daly's estimate of the best interval in steps; None if saves do not stall training."""
        if not self.stall:
            return None
        return max(round(daly_interval(self.stall, self.mttf) / self.step), 1)


def _save_times(connection: Connection, recorded: Sequence[RecordedSteps]) -> tuple[float, float]:
    """Return the mean stall per save and the mean time to its commit, in milliseconds.

    The save before an attempt's first step belongs to the start-up (the record of that step has
    its stall), so this save is left out. Both means are 0 if no other save is recorded.
    """
    series = metric_series.c
    starts = {one.attempt_id: one.start_step for one in recorded}
    query = select(series.id, series.name, series.attempt_id).where(
        series.attempt_id.in_(list(starts)), series.name.in_((SAVE, SAVE_TIME))
    )
    rows = connection.execute(query).all()
    values = read_values(connection, [row.id for row in rows], first=0, last=NEVER)
    means = []
    for name in (SAVE, SAVE_TIME):
        seconds = [np.empty(0)]
        for row in rows:
            if row.name == name and row.id in values:
                steps, found = values[row.id]
                after_first = steps > starts[row.attempt_id] + 1
                seconds.append(found[after_first & (found >= 0) & (found < MAX_SUMMED)])
        joined = np.concatenate(seconds)
        means.append(float(joined.mean() * 1000) if len(joined) else 0.0)
    return means[0], means[1]
