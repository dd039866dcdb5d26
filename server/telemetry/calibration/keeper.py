"""Measures ended attempts from their records, and calibrates predictions with the results."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

import numpy as np
from sqlalchemy import Connection, Table, select, tuple_

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.slot_tables import measured_runs
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.isolation import Isolation
from server.core.people.user_tables import submitter
from server.jobs.attempts.launch import effective_spec
from server.telemetry.calibration.store import HardwareKind, learn
from server.telemetry.goodput.step_sums import DATA, STEP, values_of_attempt
from server.telemetry.metrics.points import MAX_SUMMED
from server.telemetry.metrics.series import Values
from trainyard.planner.memory import estimate_memory
from trainyard.planner.speed.calibrate import MeasuredRun
from trainyard.planner.speed.quantities import NodeKind
from trainyard.planner.speed.step_work import step_work
from trainyard.run.failures import Failure, FailureReason
from trainyard.spec.layout import Layout

PEAKS = {"cuda": "memory/peak_reserved_gib", "cpu": "memory/peak_rss_gib"}
"""Name of the series with the largest peak memory of a rank, by kind of device."""
LEAST_POINTS = 10
"""Minimum number of valid logged steps after the first; an attempt with fewer is not measured,
unless it ran out of memory."""
LEAST_SECONDS = 1e-6
"""Minimum valid step time. Real steps take longer, and a fit needs logarithms, so 0 is invalid."""
MAX_STEPS = 20_000
"""Maximum number of steps read per attempt; only its last steps are read."""
AFTER_END = timedelta(seconds=30)
"""Time after the end of an attempt during which its last records may still arrive."""
AT_ONCE = 10
"""Maximum number of attempts that one call measures. Measuring an attempt takes a few milliseconds,
and a fit takes 0.2 s for each kind of hardware. Placements wait while a call runs.
"""
FAILED_PAUSE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _EndedAttempt(TypedRow):
    table: ClassVar[Table] = attempts
    id: str
    job_id: str
    ended_at: Annotated[datetime, attempts.c.ended_at]
    failure: Failure | None
    layout: Layout
    tainted: bool
    last_step: int


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
        measured: dict[HardwareKind, list[dict[str, Any]]] = defaultdict(list)
        for row in due:
            with self._isolation.turn(row.id, f"the measured steps of attempt {row.id}"):
                if (found := self._measured(row)) is not None:
                    measured[found[0]].append(found[1])
        for kind, rows in measured.items():
            with self._isolation.turn(kind[1], f"the calibration of {kind[1]}"):
                learn(self._context, kind, rows)
        if due:
            self._after = due[-1].ended_at, due[-1].id

    def _measured(self, row: _EndedAttempt) -> tuple[HardwareKind, dict[str, Any]] | None:
        """Return an attempt's hardware, and the attempt's row of `measured_runs` without hardware.

        Return None if the attempt has too few steps and did not run out of memory, if its nodes are
        of several kinds, or if the job's own code or a person may have written the records.
        """
        if row.tainted:
            return None
        with self._context.database.read() as connection:
            spec = effective_spec(connection, row.id)
            submitter, first_node = _origin(connection, row.id)
            hardware = _hardware(connection, row.id)
            if hardware is None:
                return None
            node, available, most = hardware
            measured: dict[str, Any] | None
            if row.failure is not None and row.failure.reason == FailureReason.OUT_OF_MEMORY:
                # Out of memory, the peak shows the available memory, not the required memory.
                measured = {"out_of_memory": True}
            else:
                names = (STEP, DATA, PEAKS[node.device])
                first = max(0, row.last_step - MAX_STEPS)
                values = values_of_attempt(connection, row.id, names, first=first)
                measured = _measure(values, PEAKS[node.device], most_bytes=most)
        if measured is None:
            return None
        partition = spec.batch_partition(row.layout)
        run = MeasuredRun(
            work=step_work(spec, row.layout, partition=partition, node=node),
            memory=estimate_memory(spec, row.layout, partition),
            available_bytes=available or None,
            **measured,
        )
        return (node.device, node.name), {
            "attempt_id": row.id,
            "ended_at": row.ended_at,
            "job_id": row.job_id,
            "submitter": submitter,
            "node": first_node,
            "run": run,
        }


def _measure(
    values: Mapping[str, Values], peak_name: str, *, most_bytes: float
) -> dict[str, Any] | None:
    """Return the measured fields of a `MeasuredRun`; None if the attempt has too few steps.

    Ranks write the records, so impossible values are left out, such as a peak above `most_bytes`.
    Otherwise a single impossible value could decide whether later jobs fit into memory.
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
    _, peaks = values.get(peak_name, _NONE)
    peaks = peaks[(peaks > 0) & (peaks < MAX_SUMMED) & (peaks * 2**30 <= most_bytes)]
    peak = round(float(peaks.max()) * 2**30) if len(peaks) else None
    return {"step_seconds": float(np.median(own)), "peak_bytes": peak}


_NONE: Values = (np.zeros(0, dtype=np.int64), np.zeros(0))


def _newest(connection: Connection, now: datetime) -> tuple[datetime, str]:
    """Return end time and id of the newest measured attempt; without one, `FAILED_PAUSE` ago."""
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
        select(submitter, attempt_nodes.c.node)
        .select_from(attempts)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .join(attempt_nodes, attempt_nodes.c.attempt_id == attempts.c.id)
        .where(attempts.c.id == attempt_id)
        .order_by(attempt_nodes.c.node_rank)
        .limit(1)
    )
    who, node = connection.execute(query).one()
    return who, node


def _hardware(connection: Connection, attempt_id: str) -> tuple[NodeKind, int, float] | None:
    """Return an attempt's kind of nodes and two sizes in bytes; None for nodes of several kinds.

    The first size is the memory of a slot, 0 if unknown. The second size is the maximum memory of a
    rank: the memory of its GPU, or of the host if the rank has no GPU; infinite if unknown.
    """
    query = (
        select(nodes.c.hardware, attempt_nodes.c.slots)
        .join(attempt_nodes, attempt_nodes.c.node == nodes.c.name)
        .where(attempt_nodes.c.attempt_id == attempt_id, attempt_nodes.c.spare_since.is_(None))
    )
    rows = connection.execute(query).all()
    if len({(row.hardware.device, row.hardware.device_name) for row in rows}) != 1:
        return None
    hardware = min((row.hardware for row in rows), key=lambda each: each.device_memory_bytes)
    slots = max(len(row.slots) for row in rows)
    available = hardware.device_memory_bytes
    of_host = max(row.hardware.memory_bytes for row in rows)
    most = available if hardware.device == "cuda" else of_host
    node = NodeKind(hardware.device, hardware.device_name, slots, hardware.cores)
    return node, available, most or math.inf
