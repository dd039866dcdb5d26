"""Stores measured runs and the coefficients fitted to them, by kind of hardware.

Runs and coefficients outlive the jobs. A row written by a later version counts as absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import Connection, Table, delete, select

from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.rows import TypedRow
from server.core.database.slot_tables import calibrations, measured_runs
from server.core.database.upsert import insert_absent, insert_or_replace
from trainyard.planner.speed.calibrate import MeasuredRun, calibrate
from trainyard.planner.speed.rates import prior_rates
from trainyard.protocol.goodput import HardwareCalibration
from trainyard.spec.auto import DeviceKind

MAX_RUNS = 120
"""Maximum number of runs per kind of hardware; the newest runs are kept. A fit of all of them takes
0.2 s.
"""
MAX_OF = {"job_id": MAX_RUNS // 10, "submitter": MAX_RUNS // 2, "node": MAX_RUNS // 2}
"""Maximum number of runs from one job, person or node. The limit per job applies only if the runs
are from several jobs. The limits per person and per node apply likewise. Without the limits, one
job, person or node could decide the predictions for all others, because a fit follows the majority
of its runs.
"""
HardwareKind = tuple[DeviceKind, str]
"""A kind of slots: the kind of device and the device's name."""


@dataclass(frozen=True, slots=True)
class StoredRun(TypedRow):
    """A stored run with its job, submitter and node, which are None in rows of older versions."""

    table: ClassVar[Table] = measured_runs
    attempt_id: str
    job_id: str | None
    submitter: str | None
    node: str | None
    run: StoredRecord[MeasuredRun]


def learn(context: Context, kind: HardwareKind, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store runs, delete the oldest runs, and fit the coefficients once to all kept runs.

    Args:
        context: the server's context.
        kind: the hardware of the runs.
        rows: rows of `measured_runs` without the hardware; rows that are already stored are
            ignored, and nothing is fitted if all are stored.
    """
    key = {"device": kind[0], "device_name": kind[1]}
    with context.database.write() as connection:
        if not insert_absent(connection, measured_runs, [{**key, **row} for row in rows]):
            return
        known = _keep_newest(connection, *kind)
    # Between two transactions, because every other writer to SQLite would wait for a fit.
    fitted = calibrate(prior_rates(*kind), known)
    values = [{**key, "fitted": fitted, "fitted_at": context.now()}]
    with context.database.write() as connection:
        insert_or_replace(connection, calibrations, values)


def _keep_newest(connection: Connection, device: str, device_name: str) -> list[MeasuredRun]:
    """Delete the oldest runs on a kind of hardware, and return the runs that are kept."""
    runs = measured_runs.c
    query = (
        StoredRun.select()
        .where(runs.device == device, runs.device_name == device_name)
        .order_by(runs.ended_at.desc(), runs.attempt_id.desc())
    )
    newest = StoredRun.all(connection, query)
    kept = bounded(newest)
    names = {row.attempt_id for row in kept}
    if dropped := [row.attempt_id for row in newest if row.attempt_id not in names]:
        connection.execute(delete(measured_runs).where(runs.attempt_id.in_(dropped)))
    return [found for row in kept if (found := row.run.read_or_none()) is not None]


def bounded(newest: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the rows to keep, the newest first, with a limit per job, person and node."""
    kept: list[StoredRun] = []
    counts: Counter[tuple[str, str]] = Counter()
    of_all = {name: {getattr(each, name) for each in newest} - {None} for name in MAX_OF}
    alone = {name for name, found in of_all.items() if len(found) == 1}
    for row in newest:
        of = [(name, whose) for name in MAX_OF if (whose := getattr(row, name)) is not None]
        if len(kept) < MAX_RUNS and all(
            name in alone or counts[name, whose] < MAX_OF[name] for name, whose in of
        ):
            kept.append(row)
            counts.update(of)
    return kept


def read_calibrations(connection: Connection) -> tuple[HardwareCalibration, ...]:
    """Return the calibration of each kind of hardware, the kind with the most runs first."""
    found = [
        HardwareCalibration(device=row.device, fitted_at=row.fitted_at, calibration=fitted)
        for row in connection.execute(select(*calibrations.c))
        if (fitted := row.fitted.read_or_none()) is not None
    ]
    return tuple(sorted(found, key=lambda each: -each.calibration.runs))
