"""Applies restarts of an event file; a restart discards a program's points from a step on."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, select

from server.core.database.engine import batches
from server.core.database.metric_and_log_tables import metric_chunks, metric_series, metric_tails
from server.telemetry.metrics.points import PACKED, Points, pack_tail, unpack
from server.telemetry.metrics.store import append_to_tails, grow_series, read_tails

SERIES_AT_ONCE = 100
"""Number of series that are read together. The tail and the cut chunk of a series have at most
3,000 points.
"""


def take_back(connection: Connection, attempt_id: str, *, names: Sequence[str], step: int) -> None:
    """Delete the points of an attempt's series `names` from `step` on; digests stay.

    Like `store_metrics`, this needs a transaction that excludes other writers of the attempt's
    metrics.
    """
    query = select(metric_series.c.id).where(
        metric_series.c.attempt_id == attempt_id,
        metric_series.c.name.in_(names),
        metric_series.c.last_step >= step,
    )
    for series in batches(connection.scalars(query).all(), SERIES_AT_ONCE):
        _take_back(connection, series, step)


def _take_back(connection: Connection, series: Sequence[int], step: int) -> None:
    """Keep whole chunks before the step, and store the other points before it as a tail row."""
    tails = read_tails(connection, series, first=0, last=step - 1)
    cut = _cut_chunks(connection, series, step)
    connection.execute(delete(metric_tails).where(metric_tails.c.series_id.in_(series)))
    chunks = metric_chunks.c
    connection.execute(
        delete(metric_chunks).where(chunks.series_id.in_(series), chunks.last_step >= step)
    )
    kept = {
        each: Points.joined([*filter(None, (cut.get(each), tails.get(each)))]) for each in series
    }
    newest = _last_steps(connection, series)
    newest |= {each: int(points.steps[-1]) for each, points in kept.items() if len(points)}
    rows = [
        (each, newest[each], int(points.steps[0]), pack_tail(*points.columns))
        for each, points in kept.items()
        if len(points)
    ]
    append_to_tails(connection, rows)
    grow_series(connection, [(newest.get(each, -1), len(kept[each]), each) for each in series])


def _cut_chunks(connection: Connection, series: Sequence[int], step: int) -> dict[int, Points]:
    """Return the points before the step, by series, from the chunks that contain the step."""
    chunks = metric_chunks.c
    query = select(chunks.series_id, *(chunks[name] for name in PACKED)).where(
        chunks.series_id.in_(series), chunks.first_step < step, chunks.last_step >= step
    )
    rows = connection.execute(query).all()
    return {row.series_id: unpack(*row[1:]).between(0, step - 1) for row in rows}


def _last_steps(connection: Connection, series: Sequence[int]) -> dict[int, int]:
    chunks = metric_chunks.c
    query = select(chunks.series_id, func.max(chunks.last_step)).where(chunks.series_id.in_(series))
    return {row[0]: row[1] for row in connection.execute(query.group_by(chunks.series_id))}
