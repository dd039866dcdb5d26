"""Compares several jobs by the buckets of their charts; each bucket has its time and tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import ClassVar

import numpy as np
from sqlalchemy import Connection, Table

from server.api.http.query import compared_jobs
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import jobs
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.visibility.scope import Scope
from server.jobs.attempts.lineage import attempts_of, lineage_of
from server.telemetry.metrics.charts import (
    MAX_BUCKETS,
    Curve,
    check_size,
    draw,
    last_step_of,
    or_none,
    series_names,
)
from server.telemetry.metrics.time_axis import Axis, StepTimes, Stretch, read_step_times
from trainyard.base.problems import Problem
from trainyard.protocol.rest.metrics_and_logs import (
    ComparedCurveView,
    ComparedJobView,
    ComparisonView,
    CurveView,
)
from trainyard.protocol.states import JobState

END = 1e15
"""A value beyond the end of every axis."""


@dataclass(frozen=True, slots=True)
class ComparedJob(TypedRow):
    """A job with the fields that a comparison shows."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    state: JobState
    layout: str
    world_size: int


def compare(
    context: Context,
    job_ids: Sequence[str],
    names: Sequence[str] = (),
    *,
    scope: Scope,
    max_points: int = 1000,
    axis: Axis = "step",
    low: float = 0.0,
    high: float = END,
) -> ComparisonView:
    """Return the series `names` of several jobs along their current lineages.

    Each curve has at most `max_points` buckets, as in `chart`, and each bucket has the time and the
    tokens of its last step. If `names` is empty, the result only lists the existing series. The
    curves are limited to the range `low..high` on `axis`. On the axes of tokens and seconds, the
    range extends to the next known step at each end. The number of queries per job is fixed.

    Raises:
        NotFoundError: some jobs do not exist or are hidden; the error lists all of them.
        InvalidRequestError: no compared job has one of the series, although a job has series; there
            are no or too many jobs, or too many names or points; or the range ends before its
            start.
    """
    wanted, drawn = compared_jobs(job_ids), list(dict.fromkeys(names))
    with context.database.read() as connection:
        rows = _rows(connection, wanted, scope=scope)
        check_size(drawn, max_points)
        if low > high:
            raise InvalidRequestError.at("query/from_x", f"{low:g} is after to_x={high:g}")
        known = series_names(connection, wanted)
        _check_names(drawn, set().union(*known.values()))
        limit = max(min(max_points, MAX_BUCKETS // max(len(wanted) * len(drawn), 1)), 1)
        views = []
        for job_id in wanted:
            segments = lineage_of(attempts_of(connection, job_id)).segments
            own = [Curve(name, "lineage", segments) for name in drawn if name in known[job_id]]
            step_times = read_step_times(connection, segments, known[job_id])
            step_times, stretch = step_times.sharpened(connection, axis, low=low, high=high)
            curves = _curves(connection, own, step_times=step_times, stretch=stretch, limit=limit)
            views.append(
                ComparedJobView(
                    **asdict(rows[job_id]),
                    start_time=step_times.start,
                    last_step=last_step_of(connection, job_id),
                    names=known[job_id],
                    curves=curves,
                )
            )
    return ComparisonView(jobs=views)


def _rows(
    connection: Connection, job_ids: Sequence[str], *, scope: Scope
) -> dict[str, ComparedJob]:
    query = ComparedJob.select().where(jobs.c.id.in_(job_ids), scope.filter(jobs.c.project))
    rows = {row.id: row for row in ComparedJob.all(connection, query)}
    if unknown := [job_id for job_id in job_ids if job_id not in rows]:
        raise NotFoundError.of_jobs(unknown)
    return rows


def _check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Reject series that no job has; accept all names while the jobs have no series at all."""
    problems = []
    for name in names:
        if known and name not in known:
            near = ", ".join(get_close_matches(name, sorted(known), n=3) or sorted(known)[:5])
            detail = f"no compared job has the series {name!r}; some that exist: {near}"
            problems.append(Problem(pointer="query/names", detail=detail))
    if problems:
        raise InvalidRequestError.of(problems)


def _curves(
    connection: Connection,
    drawn: Sequence[Curve],
    *,
    step_times: StepTimes,
    stretch: Stretch,
    limit: int,
) -> list[ComparedCurveView]:
    if stretch is None or not drawn:
        return []
    first, last = stretch
    curves = draw(connection, drawn, first=first, last=last, limit=limit)
    ends = sorted({step for curve in curves for step in curve.steps})
    exact = step_times.refined(connection, ends)
    return [_timed(curve, exact) for curve in curves]


def _timed(curve: CurveView, step_times: StepTimes) -> ComparedCurveView:
    times, tokens = step_times.at(np.array(curve.steps, dtype=np.int64))
    return ComparedCurveView(
        **{name: getattr(curve, name) for name in CurveView.model_fields},
        times=or_none(times),
        tokens=or_none(tokens),
    )
