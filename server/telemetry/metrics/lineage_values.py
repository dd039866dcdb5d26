"""Values of a metric along a lineage, used to find the best checkpoints of a job."""

from __future__ import annotations

import math
from collections.abc import Collection

from sqlalchemy import Connection, func, select

from server.core.database.metric_and_log_tables import metric_series
from server.core.database.tables import attempts
from server.jobs.attempts.lineage import Lineage
from server.jobs.checkpoints.deletion import Measured
from server.telemetry.metrics.series import values_at
from trainyard.protocol.states import AttemptState


def measure(
    connection: Connection, lineage: Lineage, metric: str, steps: Collection[int]
) -> Measured:
    """Return the values of a metric at these steps, each from the attempt that trained the step.

    Metrics and commits are reported in different files, so metrics can arrive later. A step without
    a value is pending until its attempt has stored metrics up to the step, or until the attempt has
    ended.
    """
    owners = {
        step: segment.attempt_id
        for step in steps
        for segment in lineage.segments
        if segment.after < step <= segment.until
    }
    reached, series = _state_of(connection, set(owners.values()), metric)
    found = values_at(connection, series.values(), steps=set(owners))
    values = {
        step: found[series[owner], step]
        for step, owner in owners.items()
        if owner in series and math.isfinite(found.get((series[owner], step), math.nan))
    }
    awaited = frozenset(step for step, owner in owners.items() if reached[owner] < step)
    return Measured(values, awaited - values.keys())


def _state_of(
    connection: Connection, attempt_ids: Collection[str], metric: str
) -> tuple[dict[str, float], dict[str, int]]:
    """Return, by attempt id, the last step with stored metrics and the id of the series."""
    series = metric_series.c
    rows = connection.execute(
        select(attempts.c.id, attempts.c.state, func.max(series.last_step).label("last_step"))
        .outerjoin(metric_series, series.attempt_id == attempts.c.id)
        .where(attempts.c.id.in_(attempt_ids))
        .group_by(attempts.c.id, attempts.c.state)
    )
    reached = {
        row.id: math.inf if row.state == AttemptState.ENDED else float(row.last_step or 0)
        for row in rows
    }
    named = select(series.attempt_id, series.id).where(
        series.attempt_id.in_(attempt_ids), series.name == metric
    )
    return reached, {row.attempt_id: row.id for row in connection.execute(named)}
