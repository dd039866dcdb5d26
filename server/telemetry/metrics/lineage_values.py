"""Reads a metric along a lineage, and moves late values to the attempt that trained their step."""

from __future__ import annotations

import math
from collections.abc import Collection, MutableMapping
from dataclasses import replace

from sqlalchemy import Connection, func, select

from server.core.database.metric_and_log_tables import metric_series
from server.core.database.tables import attempts
from server.jobs.attempts.lineage import Lineage, attempts_of, lineage_of
from server.jobs.attempts.reports import ReportedShare
from server.jobs.checkpoints.deletion import Measured
from server.telemetry.metrics.series import find_series, values_at
from trainyard.protocol.states import AttemptState
from trainyard.run.records import MetricRecord


def measure(
    connection: Connection, lineage: Lineage, metric: str, steps: Collection[int]
) -> Measured:
    """Return a metric's finite values at these steps, each from the attempt that trained the step.

    Metrics can arrive after the commit of their step, because the two are reported in different
    files. A step without a value is pending until its attempt has stored metrics up to the step, or
    has ended.
    """
    owners = {
        step: segment.attempt_id
        for step in steps
        for segment in lineage.segments
        if segment.after < step <= segment.until
    }
    attempt_ids = set(owners.values())
    reached = _reached(connection, attempt_ids)
    series = find_series(connection, attempt_ids, [metric])
    found = values_at(connection, series.values(), steps=set(owners))
    values = {
        step: value
        for step, owner in owners.items()
        if math.isfinite(value := found.get((series.get((owner, metric), -1), step), math.nan))
    }
    awaited = frozenset(step for step, owner in owners.items() if reached[owner] < step)
    return Measured(values, awaited - values.keys())


def _reached(connection: Connection, attempt_ids: Collection[str]) -> dict[str, float]:
    """By attempt id, return the last step that has metrics; infinity for an ended attempt."""
    last_step = func.coalesce(func.max(metric_series.c.last_step), 0)
    rows = connection.execute(
        select(attempts.c.id, attempts.c.state, last_step)
        .outerjoin(metric_series, metric_series.c.attempt_id == attempts.c.id)
        .where(attempts.c.id.in_(attempt_ids))
        .group_by(attempts.c.id, attempts.c.state)
    )
    return {key: math.inf if state == AttemptState.ENDED else last for key, state, last in rows}


def move_late_values(
    connection: Connection, share: ReportedShare, metrics: MutableMapping[str, list[MetricRecord]]
) -> None:
    """Move new values of an attempt's start step to the earlier attempt that trained this step.

    When a trainer stops, it leaves out the validation of its last step. The resumed attempt runs
    this validation. If a series already has a value for the step, that value stays, because
    `store_metrics` stores a step once. The data digest stays with the attempt that recorded it.
    `metrics` has new records by attempt id, in the order of steps.
    """
    own, step = metrics[share.attempt_id], share.start_step
    late = [record for record in own if record.step == step and record.values]
    if not late or share.parent_checkpoint_id is None:
        return
    segments = lineage_of(attempts_of(connection, share.job_id), share.number).segments
    owner = next((s.attempt_id for s in segments if s.after < step <= s.until), None)
    if owner is None or owner == share.attempt_id:  # a fork: another job trained the step
        return
    metrics.setdefault(owner, []).extend(replace(each, data_digest=None) for each in late)
    metrics[share.attempt_id] = [
        replace(record, values={}) if record.step == step else record for record in own
    ]
