"""Sums the metrics of attempts for the ledger, with separate sums for kept and lost steps.

Series with a point at each logged step are summed from the stored sums of their chunks, so only
four numbers per chunk are read. A chunk is decoded only if the last kept step lies inside it, if it
has no sum, or if it contains steps before the attempt. An older version wrote chunks without a
sum; `store_step_sums` adds the sum once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Annotated, ClassVar

import numpy as np
from sqlalchemy import Connection, Table, bindparam, select, update

from server.core.context import Context
from server.core.database.engine import batches
from server.core.database.metric_and_log_tables import metric_chunks, metric_series
from server.core.database.rows import TypedRow
from server.core.database.tables import attempts
from server.jobs.attempts.lineage import NEVER
from server.telemetry.goodput.ledger import Training
from server.telemetry.metrics.points import MAX_SUMMED, Points, summable
from server.telemetry.metrics.series import Values, decode, read_values
from server.telemetry.metrics.store import read_tails
from server.telemetry.metrics.time_axis import last_number_of, number_at

STEP, DATA = "perf/step_seconds", "perf/data_seconds"
"""Series of means over the steps since the previous point, with a point at each logged step."""
COMPILE, SAVE, VALIDATION = "compile/seconds", "checkpoint/stall_seconds", "validation/seconds"
"""Series of durations, with a point at each step with a compilation, a save or a validation."""
DENSE, SPARSE = (STEP, DATA), (COMPILE, SAVE, VALIDATION)
ATTEMPTS_AT_ONCE = 1_000
"""Attempts per query, each with up to three series; SQLite allows 32,766 parameters."""
SUMMED_AT_ONCE = 200
"""Chunks without a sum that one batch decodes, up to 24 KB each."""


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The steps of an attempt; steps up to `until` are kept."""

    attempt_id: str
    number: int
    start_step: int
    until: int


@dataclass(frozen=True, slots=True)
class StepSum:
    """The sums of a series of means, over kept and lost steps."""

    kept: float = 0.0
    """Sum over the kept steps."""
    lost: float = 0.0
    """Sum over the lost steps."""
    began: float = 0.0
    """Unix time in seconds at which the steps of the first point started."""
    recorded: float = 0.0
    """Unix time of the last point, in seconds."""
    last_step: int = 0
    """Step number of the last point."""


@dataclass(frozen=True, slots=True)
class _Chunk(TypedRow):
    """A chunk of a series, read without the chunk's points."""

    table: ClassVar[Table] = metric_chunks
    series_id: int
    first_step: int
    last_step: int
    step_sum: float | None
    first_number: Annotated[bytes, number_at(metric_chunks.c.numbers, 1).label("first_number")]
    """First value of the chunk, 8 bytes."""
    first_time: Annotated[bytes, number_at(metric_chunks.c.times, 1).label("first_time")]
    """Time of the chunk's first point, 8 bytes."""
    last_time: Annotated[bytes, last_number_of(metric_chunks.c.times).label("last_time")]
    """Time of the chunk's last point, 8 bytes."""


def read_trainings(
    connection: Connection, recorded: Sequence[RecordedSteps]
) -> dict[str, Training]:
    """Return recorded training times by attempt id; attempts without steps are omitted.

    The number of queries is fixed for every `ATTEMPTS_AT_ONCE` attempts. The queries read the
    chunks of two series per attempt, and its live points.
    """
    trainings: dict[str, Training] = {}
    for some in batches(recorded, ATTEMPTS_AT_ONCE):
        trainings |= _trainings(connection, some)
    return trainings


def store_step_sums(context: Context, job_id: str) -> None:
    """Store the missing sums of the chunks that an older version wrote for a job.

    Each batch is decoded and stored in its own transactions, which limits memory and the duration
    of locks. After a failure, the next call sums the remaining chunks.
    """
    chunks = metric_chunks.c
    query = (
        select(chunks.series_id, chunks.first_step)
        .join(metric_series, metric_series.c.id == chunks.series_id)
        .join(attempts, attempts.c.id == metric_series.c.attempt_id)
        .where(
            attempts.c.job_id == job_id,
            metric_series.c.name.in_(DENSE),
            chunks.step_sum.is_(None),
        )
        .order_by(chunks.first_step)  # all series of an attempt are cut at the same steps
    )
    with context.database.read() as connection:
        lacking = [(row.series_id, row.first_step) for row in connection.execute(query)]
    statement = (
        update(metric_chunks)
        .where(
            chunks.series_id == bindparam("series"),
            chunks.first_step == bindparam("first"),
            chunks.step_sum.is_(None),
        )
        .values(step_sum=bindparam("sum"))
    )
    for some in batches(lacking, SUMMED_AT_ONCE):
        with context.database.read() as connection:
            decoded = decode(connection, some)
        sums = [
            {"series": series_id, "first": first, "sum": points.step_sum()}
            for (series_id, first), points in decoded.items()
        ]
        if sums:  # empty if the job was deleted meanwhile
            with context.database.write() as connection:
                connection.execute(statement, sums)


def _trainings(connection: Connection, recorded: Sequence[RecordedSteps]) -> dict[str, Training]:
    ids = _series_ids(connection, [one.attempt_id for one in recorded])
    dense = {
        ids[one.attempt_id, name]: one
        for one in recorded
        for name in DENSE
        if (one.attempt_id, name) in ids
    }
    sums = _step_sums(connection, dense)
    durations = read_values(
        connection,
        [key for (_, name), key in ids.items() if name in SPARSE],
        first=0,
        last=NEVER,
    )
    trainings = {}
    for one in recorded:
        step = sums.get(ids.get((one.attempt_id, STEP), 0))
        if step is None:
            continue
        data = sums.get(ids.get((one.attempt_id, DATA), 0), StepSum())
        sparse = {
            name: durations[ids[one.attempt_id, name]]
            for name in SPARSE
            if ids.get((one.attempt_id, name)) in durations
        }
        trainings[one.attempt_id] = _training(one, step, data=data, sparse=sparse)
    return trainings


def _series_ids(connection: Connection, attempt_ids: Sequence[str]) -> dict[tuple[str, str], int]:
    columns = metric_series.c
    query = select(columns.attempt_id, columns.name, columns.id).where(
        columns.attempt_id.in_(attempt_ids), columns.name.in_(DENSE + SPARSE)
    )
    return {(row.attempt_id, row.name): row.id for row in connection.execute(query)}


def _training(
    one: RecordedSteps, step: StepSum, *, data: StepSum, sparse: Mapping[str, Values]
) -> Training:
    compiled = _total(sparse.get(COMPILE), first=one.start_step + 1, last=one.until)
    kept = _milliseconds(step.kept)
    data_wait = min(_milliseconds(data.kept), kept)
    compilation = min(_milliseconds(compiled), kept - data_wait)
    # The first step's record has the stall of the previous save, which belongs to start-up.
    stall = _total(sparse.get(SAVE), first=one.start_step + 2, last=NEVER)
    return Training(
        began=_milliseconds(step.began),
        recorded=_milliseconds(step.recorded),
        productive=kept - data_wait - compilation,
        lost=_milliseconds(step.lost),
        compilation=compilation,
        data_wait=data_wait,
        save_stall=_milliseconds(stall),
        validation=_milliseconds(
            _total(sparse.get(VALIDATION), first=one.start_step + 1, last=NEVER)
        ),
        last_step=step.last_step,
        compiled=_milliseconds(_total(sparse.get(COMPILE), first=one.start_step + 1, last=NEVER)),
    )


def _total(values: Values | None, *, first: int, last: int) -> float:
    if values is None:
        return 0.0
    steps, seconds = values
    inside = (steps >= first) & (steps <= last) & (seconds > 0)
    return float(summable(seconds[inside]).sum())


def _milliseconds(seconds: float) -> int:
    # A rank may write a negative duration.
    milliseconds = seconds * 1000
    return max(round(milliseconds), 0) if math.isfinite(milliseconds) else 0


def _step_sums(connection: Connection, series: Mapping[int, RecordedSteps]) -> dict[int, StepSum]:
    tails = read_tails(connection, series, first=0, last=NEVER)  # read before the chunks
    rows = _chunks(connection, list(series))
    opened = decode(
        connection,
        {
            (key, row.first_step)
            for key, own in rows.items()
            for row in own
            if row.step_sum is None
            or row.first_step <= series[key].start_step  # a rank may count steps differently
            or row.first_step <= series[key].until < row.last_step
        },
    )
    sums = {}
    for key in tails.keys() | rows.keys():
        added = _Adding(series[key])
        for row in rows.get(key, ()):
            if (key, row.first_step) in opened:
                added.points(opened[key, row.first_step])
            elif row.step_sum is not None:  # chunk without a sum: decoded, if it still exists
                added.chunk(row, row.step_sum)
        added.points(tails.get(key, Points.joined([])))
        total = added.total()
        if total is not None:
            sums[key] = total
    return sums


def _chunks(connection: Connection, series_ids: Sequence[int]) -> dict[int, list[_Chunk]]:
    query = (
        _Chunk.select()
        .where(metric_chunks.c.series_id.in_(series_ids))
        .order_by(metric_chunks.c.series_id, metric_chunks.c.first_step)
    )
    rows = _Chunk.all(connection, query)
    return {key: list(own) for key, own in groupby(rows, attrgetter("series_id"))}


class _Adding:
    """Adds up one series, part by part in ascending order of the steps."""

    def __init__(self, recorded: RecordedSteps) -> None:
        self.previous = recorded.start_step
        self._until = recorded.until
        self._kept = self._lost = 0.0
        self._began: float | None = None
        self._recorded = 0.0

    def chunk(self, row: _Chunk, step_sum: float) -> None:
        """Add the stored sum of a chunk without the last kept step inside it."""
        first, began, recorded = struct.unpack(
            "<3d", row.first_number + row.first_time + row.last_time
        )
        covered = row.first_step - self.previous
        self._begin(began, first, covered)
        kept = min(max(self._until - self.previous, 0), covered)
        if 0 <= first < MAX_SUMMED:
            self._kept += first * kept
            self._lost += first * (covered - kept)
        if row.last_step <= self._until:
            self._kept += step_sum
        else:
            self._lost += step_sum
        self.previous, self._recorded = row.last_step, recorded

    def points(self, points: Points) -> None:
        """Add points, each of which stands for the steps since the previous point.

        Points before the attempt are left out, and so are live points that are already in a chunk.
        """
        points = points[points.steps > self.previous]
        if not len(points):
            return
        before = np.concatenate(([self.previous], points.steps[:-1]))
        covered = np.maximum(points.steps - before, 0)
        kept = np.clip(self._until - before, 0, covered)
        seconds = summable(points.values)
        self._begin(float(points.times[0]), float(seconds[0]), int(covered[0]))
        self._kept += float(seconds @ kept)
        self._lost += float(seconds @ (covered - kept))
        self.previous, self._recorded = int(points.steps[-1]), float(points.times[-1])

    def _begin(self, time: float, seconds: float, covered: int) -> None:
        if self._began is None:
            self._began = time - (seconds * covered if 0 <= seconds < MAX_SUMMED else 0.0)

    def total(self) -> StepSum | None:
        """Return the sum; None if no point follows the attempt's start step."""
        if self._began is None:
            return None
        return StepSum(self._kept, self._lost, self._began, self._recorded, self.previous)
