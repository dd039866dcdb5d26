"""Measures ended attempts from their records, and calibrates predictions with the results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

import numpy as np
from sqlalchemy import Connection, Table, func, select, tuple_

from server.core.context import Context
from server.core.database.metric_and_log_tables import metric_series
from server.core.database.rows import TypedRow
from server.core.database.slot_tables import measured_runs
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.isolation import Isolation
from server.jobs.attempts.launch import effective_spec
from server.jobs.attempts.lineage import NEVER
from server.telemetry.calibration.store import EndedRun, HardwareKind, learn
from server.telemetry.metrics.points import MAX_SUMMED, Floats
from server.telemetry.metrics.series import Values, read_values
from trainyard.planner.memory import estimate_memory
from trainyard.planner.speed.calibrate import MeasuredRun
from trainyard.planner.speed.quantities import NodeKind
from trainyard.planner.speed.step_work import step_work
from trainyard.run.failures import Failure, FailureReason
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

STEP, DATA = "perf/step_seconds", "perf/data_seconds"
PEAKS = {"cuda": "memory/peak_reserved_gib", "cpu": "memory/peak_rss_gib"}
"""Series with the peak memory of the rank that uses most, by device."""
LEAST_POINTS = 10
"""Minimum number of logged steps, without the first, for an attempt's median to count."""
LEAST_SECONDS = 1e-6
"""Minimum valid step time; real steps are longer, and a fit uses logarithms."""
MAX_STEPS = 20_000
"""Maximum number of steps read per attempt; only its last steps are read."""
AFTER_END = timedelta(seconds=30)
"""Time after the end of an attempt during which its last records may still arrive."""
AT_ONCE = 10
"""Maximum number of attempts that one call measures, in a few milliseconds per attempt. A fit takes
0.2 s for each kind of hardware. Placements wait while a call runs."""
FAILED_PAUSE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Place:
    """The nodes of an attempt."""

    node: NodeKind
    available: int
    """Memory of a slot in bytes; 0 if unknown."""
    most: float
    """Maximum memory of a rank in bytes, which is the memory of its GPU or of the host."""


@dataclass(frozen=True, slots=True)
class _EndedAttempt(TypedRow):
    """An attempt that has ended."""

    table: ClassVar[Table] = attempts
    id: str
    job_id: str
    ended_at: Annotated[datetime, attempts.c.ended_at]
    failure: Failure | None
    layout: Layout
    tainted: bool


class CalibrationKeeper:
    """Calibrates predictions with the ended attempts, in the order of their ends."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._after: tuple[datetime, str] | None = None
        self._isolation = Isolation(context.clock.monotonic, pause=FAILED_PAUSE)

    def run(self) -> None:
        """Measure the next ended attempts."""
        now = self._context.now()
        with self._context.database.read() as connection:
            if self._after is None:
                self._after = _newest(connection, now)
            due = _due(connection, self._after, now - AFTER_END)
        measured: dict[HardwareKind, list[EndedRun]] = {}
        for row in due:
            with self._isolation.turn(row.id, f"the measured steps of attempt {row.id}"):
                if (found := self._measured(row)) is not None:
                    measured.setdefault(found[0], []).append(found[1])
        for kind, runs in measured.items():
            with self._isolation.turn(kind.device_name, f"the calibration of {kind.device_name}"):
                learn(self._context, kind, runs)
        if due:
            self._after = due[-1].ended_at, due[-1].id

    def _measured(self, row: _EndedAttempt) -> tuple[HardwareKind, EndedRun] | None:
        """Return the hardware and the measured run of an attempt.

        Return None if the attempt has too few steps, or if a job's code or a person may have
        written the records.
        """
        if row.tainted:
            return None
        with self._context.database.read() as connection:
            spec = effective_spec(connection, row.id)
            submitter, node = _origin(connection, row.id)
            place = _place(connection, row.id)
            if place is None:
                return None
            out_of_memory = (
                row.failure is not None and row.failure.reason == FailureReason.OUT_OF_MEMORY
            )
            run = (
                # Out of memory, the peak shows the available memory, not the required memory.
                _run(spec, row.layout, place.node, out_of_memory=True)
                if out_of_memory
                else measured_run(
                    spec,
                    row.layout,
                    node=place.node,
                    values=_values(connection, row.id, place.node.device),
                    most_bytes=place.most,
                )
            )
        if run is None:
            return None
        kind = HardwareKind(place.node.device, place.node.name)
        run = replace(run, available_bytes=place.available or None)
        return kind, EndedRun(row.id, row.ended_at, row.job_id, submitter, node, run)


def measured_run(
    spec: JobSpec,
    layout: Layout,
    *,
    node: NodeKind,
    values: Mapping[str, Values],
    most_bytes: float,
) -> MeasuredRun | None:
    """Measure an attempt from its records; return None if it has too few steps.

    Ranks write the records, so impossible values are left out. A single impossible value would
    decide, for every job, whether the job fits.

    Args:
        spec: the effective spec.
        layout: layout of the attempt.
        node: kind of the attempt's nodes.
        values: points of `perf/step_seconds`, `perf/data_seconds` and the series of peak memory.
        most_bytes: maximum memory of a rank, in bytes.
    """
    steps, seconds = values.get(STEP, _NONE)
    counted = (seconds > 0) & (seconds < MAX_SUMMED)
    counted[:1] = False  # the first step allocates and compiles
    data = np.zeros_like(seconds)
    waited_steps, waited = values.get(DATA, _NONE)
    if len(waited_steps) == len(steps):
        data = np.where((waited >= 0) & (waited < seconds), waited, 0.0)
    own = (seconds - data)[counted]
    own = own[own >= LEAST_SECONDS]
    if len(own) < LEAST_POINTS:
        return None
    _, peaks = values.get(PEAKS[node.device], _NONE)
    peaks = peaks[(peaks > 0) & (peaks < MAX_SUMMED) & (peaks * 2**30 <= most_bytes)]
    peak = round(float(peaks.max()) * 2**30) if len(peaks) else None
    return _run(spec, layout, node, step_seconds=float(np.median(own)), peak_bytes=peak)


def _run(spec: JobSpec, layout: Layout, node: NodeKind, **measured: Any) -> MeasuredRun:
    partition = spec.batch_partition(layout)
    return MeasuredRun(
        work=step_work(spec, layout, partition=partition, node=node),
        memory=estimate_memory(spec, layout, partition),
        **measured,
    )


_NONE: tuple[Any, Floats] = (np.zeros(0, dtype=np.int64), np.zeros(0))


def _newest(connection: Connection, now: datetime) -> tuple[datetime, str]:
    """Return end time and id of the attempt measured last."""
    row = connection.execute(
        select(measured_runs.c.ended_at, measured_runs.c.attempt_id)
        .order_by(measured_runs.c.ended_at.desc(), measured_runs.c.attempt_id.desc())
        .limit(1)
    ).one_or_none()
    return (now - FAILED_PAUSE, "") if row is None else (row.ended_at, row.attempt_id)


def _due(
    connection: Connection, after: tuple[datetime, str], until: datetime
) -> Sequence[_EndedAttempt]:
    columns = attempts.c
    # This condition makes the index of end times yield only the new attempts. With conditions
    # joined by OR, or with one on the state, a database reads every attempt that ever ended.
    later = tuple_(columns.ended_at, columns.id) > tuple_(*after)
    query = (
        _EndedAttempt.select()
        .where(columns.ended_at <= until, later)
        .order_by(columns.ended_at, columns.id)
        .limit(AT_ONCE)
    )
    return _EndedAttempt.all(connection, query)


def _origin(connection: Connection, attempt_id: str) -> tuple[str, str]:
    """Return the submitter of the attempt's job, and the node of its rank 0."""
    query = (
        select(func.coalesce(jobs.c.token_id, jobs.c.created_by), attempt_nodes.c.node)
        .select_from(attempts)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .join(attempt_nodes, attempt_nodes.c.attempt_id == attempts.c.id)
        .where(attempts.c.id == attempt_id)
        .order_by(attempt_nodes.c.node_rank)
        .limit(1)
    )
    submitter, node = connection.execute(query).one()
    return submitter, node


def _place(connection: Connection, attempt_id: str) -> _Place | None:
    """Return the nodes of an attempt; None if the nodes are of several kinds."""
    query = (
        select(nodes.c.hardware, attempt_nodes.c.slots)
        .join(attempt_nodes, attempt_nodes.c.node == nodes.c.name)
        .where(attempt_nodes.c.attempt_id == attempt_id, attempt_nodes.c.spare_since.is_(None))
    )
    rows = connection.execute(query).all()
    if len({HardwareKind.of(row.hardware) for row in rows}) != 1:
        return None
    hardware = min((row.hardware for row in rows), key=lambda each: each.device_memory_bytes)
    slots = max(len(row.slots) for row in rows)
    node = NodeKind(hardware.device, hardware.device_name, slots, hardware.cores)
    available = hardware.device_memory_bytes
    of_host = max(row.hardware.memory_bytes for row in rows)
    most = available if hardware.device == "cuda" else of_host
    return _Place(node, available, most or math.inf)


def _values(connection: Connection, attempt_id: str, device: str) -> Mapping[str, Values]:
    series = metric_series.c
    names = (STEP, DATA, PEAKS[device])
    query = select(series.id, series.name).where(
        series.attempt_id == attempt_id, series.name.in_(names)
    )
    by_id = {row.id: row.name for row in connection.execute(query)}
    last = connection.scalar(select(attempts.c.last_step).where(attempts.c.id == attempt_id)) or 0
    found = read_values(connection, list(by_id), first=max(0, last - MAX_STEPS), last=NEVER)
    return {by_id[key]: values for key, values in found.items()}
