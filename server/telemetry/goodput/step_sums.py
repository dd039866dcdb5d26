"""Sums the metrics of attempts for the ledger, with separate sums for kept and lost steps.

Series with a point at each logged step are summed from the stored sums of their chunks, so only
four numbers per chunk are read. A chunk is decoded only if the last kept step lies inside it, if it
has no sum, or if it contains steps before the attempt. An older version wrote chunks without a
sum; `store_step_sums` adds the sum once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
from server.telemetry.metrics.series import Values, decode, find_series, read_values
from server.telemetry.metrics.store import read_tails
from server.telemetry.metrics.time_axis import last_number_of, number_at

STEP, DATA = "perf/step_seconds", "perf/data_seconds"
"""Series whose points are means over the steps since the previous point; each logged step has a
point.
"""
COMPILE, SAVE, VALIDATION = "compile/seconds", "checkpoint/stall_seconds", "validation/seconds"
"""Series whose points are durations; only steps with a compilation, a save or a validation have a
point.
"""
DENSE, SPARSE = (STEP, DATA), (COMPILE, SAVE, VALIDATION)
ATTEMPTS_AT_ONCE = 1_000
"""Number of attempts per query, each with up to three series; SQLite allows 32,766 parameters."""
SUMMED_AT_ONCE = 200
"""Number of chunks without a sum that one batch decodes; a chunk has up to 24 KB."""


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The steps of an attempt; steps up to `until` are kept."""

    attempt_id: str
    number: int
    start_step: int
    until: int


@dataclass(frozen=True, slots=True)
class _Chunk(TypedRow):
    """The stored fields of a chunk, without its points; a `bytes` field holds one 8-byte float."""

    table: ClassVar[Table] = metric_chunks
    series_id: int
    first_step: int
    last_step: int
    step_sum: float | None
    first_number: Annotated[bytes, number_at(metric_chunks.c.numbers, 1).label("first_number")]
    first_time: Annotated[bytes, number_at(metric_chunks.c.times, 1).label("first_time")]
    last_time: Annotated[bytes, last_number_of(metric_chunks.c.times).label("last_time")]


@dataclass(slots=True)
class _StepSum:
    """The sums of a series whose points are means; points are added in the order of their steps."""

    until: int
    """Number of the last kept step."""
    last_step: int
    """Number of the last added step; before the first point, the start step of the attempt."""
    kept: float = 0.0
    lost: float = 0.0
    began: float | None = None
    """Unix time in seconds at which the steps of the first point started."""
    recorded: float = 0.0
    """Unix time of the last point, in seconds."""

    def add_chunk(self, row: _Chunk, step_sum: float) -> None:
        """Add the stored sum of a chunk whose last step is kept or whose first step is lost."""
        first, began, recorded = struct.unpack(
            "<3d", row.first_number + row.first_time + row.last_time
        )
        covered = row.first_step - self.last_step
        self._begin(began, first, covered)
        kept = min(max(self.until - self.last_step, 0), covered)
        if 0 <= first < MAX_SUMMED:
            self.kept += first * kept
            self.lost += first * (covered - kept)
        if row.last_step <= self.until:
            self.kept += step_sum
        else:
            self.lost += step_sum
        self.last_step, self.recorded = row.last_step, recorded

    def add_points(self, points: Points) -> None:
        """Add points, each of which stands for the steps since the previous point.

        Points before the attempt are left out, and so are live points that are already in a chunk.
        """
        points = points[points.steps > self.last_step]
        if not len(points):
            return
        before = np.concatenate(([self.last_step], points.steps[:-1]))
        covered = np.maximum(points.steps - before, 0)
        kept = np.clip(self.until - before, 0, covered)
        seconds = summable(points.values)
        self._begin(float(points.times[0]), float(seconds[0]), int(covered[0]))
        self.kept += float(seconds @ kept)
        self.lost += float(seconds @ (covered - kept))
        self.last_step, self.recorded = int(points.steps[-1]), float(points.times[-1])

    def _begin(self, time: float, seconds: float, covered: int) -> None:
        if self.began is None:
            self.began = time - (seconds * covered if 0 <= seconds < MAX_SUMMED else 0.0)


def read_trainings(
    connection: Connection, recorded: Sequence[RecordedSteps]
) -> dict[str, Training]:
    """Return recorded training times by attempt id; attempts without step times are omitted.

    Each batch of `ATTEMPTS_AT_ONCE` attempts takes a fixed number of queries. For each attempt,
    these queries read the sums of two series, the points of three, and the live points of all five.
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
    chunks, series = metric_chunks.c, metric_series.c
    query = (
        select(chunks.series_id, chunks.first_step)
        .join(metric_series, series.id == chunks.series_id)
        .join(attempts, attempts.c.id == series.attempt_id)
        .where(attempts.c.job_id == job_id, series.name.in_(DENSE), chunks.step_sum.is_(None))
        .order_by(chunks.first_step)  # all series of an attempt are cut at the same steps
    )
    with context.database.read() as connection:
        lacking = [(row.series_id, row.first_step) for row in connection.execute(query)]
    is_chunk = (chunks.series_id == bindparam("series")) & (chunks.first_step == bindparam("first"))
    statement = update(metric_chunks).where(is_chunk, chunks.step_sum.is_(None))
    for some in batches(lacking, SUMMED_AT_ONCE):
        with context.database.read() as connection:
            decoded = decode(connection, some)
        sums = [
            {"series": series_id, "first": first, "sum": points.step_sum()}
            for (series_id, first), points in decoded.items()
        ]
        if sums:  # empty if the job was deleted meanwhile
            with context.database.write() as connection:
                connection.execute(statement.values(step_sum=bindparam("sum")), sums)


def values_of_attempt(
    connection: Connection,
    attempt_id: str,
    names: Collection[str],
    *,
    first: int,
    last: int = NEVER,
) -> dict[str, Values]:
    """Return the points of an attempt in the steps `first..last`, by name of the series."""
    ids = find_series(connection, [attempt_id], names)
    found = read_values(connection, list(ids.values()), first=first, last=last)
    return {name: found[id_] for (_, name), id_ in ids.items() if id_ in found}


def total_of(values: Values | None, *, first: int, last: int = NEVER) -> float:
    """Return the sum of the valid durations in the steps `first..last`."""
    if values is None:
        return 0.0
    steps, seconds = values
    return float(summable(seconds[(steps >= first) & (steps <= last)]).sum())


def _trainings(connection: Connection, recorded: Sequence[RecordedSteps]) -> dict[str, Training]:
    ids = find_series(connection, [one.attempt_id for one in recorded], DENSE + SPARSE)
    dense = {
        ids[one.attempt_id, name]: one
        for one in recorded
        for name in DENSE
        if (one.attempt_id, name) in ids
    }
    sums = _step_sums(connection, dense)
    sparse = [key for (_, name), key in ids.items() if name in SPARSE]
    durations = read_values(connection, sparse, first=0, last=NEVER)
    trainings = {}
    for one in recorded:
        keys = {name: ids.get((one.attempt_id, name), 0) for name in DENSE + SPARSE}
        if (step := sums.get(keys[STEP])) is not None:
            trainings[one.attempt_id] = _training(
                one,
                step,
                data=sums.get(keys[DATA]),
                sparse={name: durations.get(keys[name]) for name in SPARSE},
            )
    return trainings


def _training(
    one: RecordedSteps,
    step: _StepSum,
    *,
    data: _StepSum | None,
    sparse: Mapping[str, Values | None],
) -> Training:
    first = one.start_step + 1
    kept = _milliseconds(step.kept)
    data_wait = min(_milliseconds(data.kept), kept) if data else 0
    compiled = _milliseconds(total_of(sparse[COMPILE], first=first, last=one.until))
    compilation = min(compiled, kept - data_wait)
    return Training(
        began=_milliseconds(step.began or 0.0),
        recorded=_milliseconds(step.recorded),
        productive=kept - data_wait - compilation,
        lost=_milliseconds(step.lost),
        compilation=compilation,
        data_wait=data_wait,
        # The first step's record has the stall of the previous save, which belongs to start-up.
        save_stall=_milliseconds(total_of(sparse[SAVE], first=first + 1)),
        validation=_milliseconds(total_of(sparse[VALIDATION], first=first)),
        last_step=step.last_step,
        compiled=_milliseconds(total_of(sparse[COMPILE], first=first)),
    )


def _milliseconds(seconds: float) -> int:
    # A rank may write a negative duration.
    milliseconds = seconds * 1000
    return max(round(milliseconds), 0) if math.isfinite(milliseconds) else 0


def _step_sums(connection: Connection, series: Mapping[int, RecordedSteps]) -> dict[int, _StepSum]:
    """Return the sums of each series whose points are means.

    Series without a point after the attempt's start are omitted.
    """
    tails = read_tails(connection, series, first=0, last=NEVER)  # read before the chunks
    chunks = metric_chunks.c
    rows = _Chunk.all(
        connection,
        _Chunk.select()
        .where(chunks.series_id.in_(list(series)))
        .order_by(chunks.series_id, chunks.first_step),
    )
    opened = decode(
        connection,
        {
            (row.series_id, row.first_step)
            for row in rows
            if row.step_sum is None
            # A rank may count steps differently.
            or row.first_step <= series[row.series_id].start_step
            or row.first_step <= series[row.series_id].until < row.last_step
        },
    )
    sums = {key: _StepSum(one.until, one.start_step) for key, one in series.items()}
    for row in rows:
        if (points := opened.get((row.series_id, row.first_step))) is not None:
            sums[row.series_id].add_points(points)
        elif row.step_sum is not None:  # chunk without a sum: decoded, if it still exists
            sums[row.series_id].add_chunk(row, row.step_sum)
    for key, points in tails.items():
        sums[key].add_points(points)
    return {key: found for key, found in sums.items() if found.began is not None}
