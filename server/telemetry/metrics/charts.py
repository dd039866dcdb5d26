"""Charts: a job's curves in buckets, along its lineage and along abandoned branches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from server.core.context import Context
from server.core.database.metric_and_log_tables import metric_series
from server.core.database.tables import attempts
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.jobs.attempts.lineage import (
    NEVER,
    AttemptKey,
    Segment,
    attempts_of,
    branches_of,
    lineage_of,
    own_steps,
)
from server.telemetry.metrics.points import Floats, Points
from server.telemetry.metrics.series import (
    Buckets,
    ChunkKey,
    Series,
    Spans,
    decode_in_turn,
    find_series,
    read_series,
)
from trainyard.protocol.rest.metrics_and_logs import CurveView, MetricsView

MAX_POINTS = 10_000
"""Maximum number of buckets per curve."""
MAX_NAMES = 50
"""Maximum number of series per chart."""
MAX_BUCKETS = 20_000
"""Maximum number of buckets of all curves together; with many curves, each one gets fewer."""
WIDEST = 2
"""Maximum width of a chunk that is not decoded, in bucket widths. A wider chunk would move the
borders of buckets too far."""
JOINED_AT_ONCE = 50
"""Number of decoded chunks that one call adds to buckets (4 MB of spans); a call for each chunk
would take more time."""
MAX_BRANCHES = 20
"""Maximum number of abandoned branches in a chart. The chart has the newest branches; `attempt`
selects any other one."""


@dataclass(frozen=True)
class Curve:
    """A curve of a chart before its points are read."""

    name: str
    """Name of the series."""
    branch: str
    """`lineage` or `attempt-<n>`."""
    segments: tuple[Segment, ...]
    """Attempts of the curve, each with its steps."""


@dataclass
class _StoredCurve:
    """A curve with the stored series of its segments; `limit` is its maximum number of buckets."""

    curve: Curve
    parts: list[tuple[Segment, Series]]
    limit: int

    @cached_property
    def extent(self) -> tuple[int, int]:
        """First and last step at which the curve may have a point."""
        firsts, lasts = [], []
        for segment, series in self.parts:
            for steps, ends in (
                (series.chunks.first, series.chunks.last),
                (series.tail.steps, series.tail.steps),
            ):
                if len(steps):
                    firsts.append(max(int(steps[0]), segment.after + 1))
                    lasts.append(min(int(ends[-1]), segment.until))
        return min(firsts), max(lasts)

    @cached_property
    def masks(self) -> list[NDArray[np.bool_]]:
        """For each segment, the mask of the chunks to decode.

        A chunk is decoded if it is too wide, or if an end of the segment cuts it.
        """
        first, last = self.extent
        widest = WIDEST * (last - first + 1) / self.limit
        return [
            (series.chunks.first <= segment.after)
            | (series.chunks.last > segment.until)
            | (series.chunks.last - series.chunks.first + 1 > widest)
            for segment, series in self.parts
        ]

    def to_decode(self) -> Iterator[ChunkKey]:
        """Yield the keys of the chunks to decode."""
        for (_, series), mask in zip(self.parts, self.masks, strict=True):
            yield from ((series.id, first) for first in series.chunks.first[mask].tolist())

    def spans(self, decoded: Iterator[Points]) -> Spans:
        """Return the curve's buckets; `decoded` yields the points of the chunks in `to_decode`."""
        first, last = self.extent
        buckets = Buckets(first=first, last=last, limit=self.limit)
        for (segment, series), mask in zip(self.parts, self.masks, strict=True):
            edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
            begin = 0
            for first_split, end in zip(edges[::2], edges[1::2], strict=True):
                buckets.add(series.chunks[begin:first_split])
                for start in range(first_split, end, JOINED_AT_ONCE):
                    some = islice(decoded, min(JOINED_AT_ONCE, end - start))
                    buckets.add(_spans_of(Points.joined(some), segment))
                begin = end
            buckets.add(series.chunks[begin:])
            buckets.add(_spans_of(series.tail, segment))
        return buckets.spans()


def chart(
    context: Context,
    job_id: str,
    names: Sequence[str],
    *,
    scope: Scope,
    max_points: int = 1000,
    from_step: int | None = None,
    to_step: int | None = None,
    attempt: int | None = None,
) -> MetricsView:
    """Return the curves of the series `names`, each in at most `max_points` buckets.

    The first curve of a name follows the job's current lineage. Each abandoned branch is a separate
    curve. If the number of an `attempt` is given, each name has only one curve, with the steps of
    that attempt. Unknown names have no curve. Minimum, maximum, last value, count, and the number
    of NaN and infinite points are exact for the steps of a bucket. If there are many curves, each
    has fewer buckets.

    Raises:
        NotFoundError: no such job or attempt exists.
        InvalidRequestError: too many names, or an invalid number of buckets.
    """
    wanted = list(dict.fromkeys(names))
    check_size(wanted, max_points)
    first = 0 if from_step is None else from_step
    last = NEVER if to_step is None else to_step
    with context.database.read() as connection:
        keys = attempt_keys(connection, job_id, attempt, scope=scope)
        drawn = _curves(wanted, keys, attempt)
        limit = max(min(max_points, MAX_BUCKETS // max(len(drawn), 1)), 1)
        curves = draw(connection, drawn, first=first, last=last, limit=limit)
        return MetricsView(
            job_id=job_id,
            names=series_names(connection, [job_id])[job_id],
            last_step=last_step_of(connection, job_id),
            curves=curves,
        )


def attempt_keys(
    connection: Connection, job_id: str, attempt: int | None, *, scope: Scope
) -> dict[int, AttemptKey]:
    """Return the attempts of a visible job by number.

    Raises:
        NotFoundError: the job, or the job's attempt with the number `attempt`, does not exist.
    """
    check_job(connection, job_id, scope=scope)
    keys = attempts_of(connection, job_id)
    if attempt is not None and attempt not in keys:
        raise NotFoundError(f"job {job_id} has no attempt {attempt}; it has {len(keys)}")
    return keys


def _curves(names: Iterable[str], keys: dict[int, AttemptKey], attempt: int | None) -> list[Curve]:
    if attempt is not None:
        segments = (own_steps(keys[attempt]),)
        return [Curve(name, f"attempt-{attempt}", segments) for name in names]
    lineage = lineage_of(keys)
    left = branches_of(keys, lineage)[:MAX_BRANCHES]
    branches = [("lineage", lineage.segments), *((f"attempt-{s.number}", (s,)) for s in left)]
    return [Curve(name, branch, segments) for name in names for branch, segments in branches]


def check_size(names: Sequence[str], max_points: int) -> None:
    """Raise InvalidRequestError for too many names, or for an invalid number of buckets."""
    if len(names) > MAX_NAMES:
        raise InvalidRequestError.at("query/names", f"{len(names)} names; at most {MAX_NAMES}")
    if not 1 <= max_points <= MAX_POINTS:
        raise InvalidRequestError.at("query/max_points", f"{max_points} is not 1 to {MAX_POINTS}")


def series_names(connection: Connection, job_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the series names by job id, including series that only abandoned branches have."""
    query = (
        select(attempts.c.job_id, metric_series.c.name)
        .join(attempts, attempts.c.id == metric_series.c.attempt_id)
        .where(attempts.c.job_id.in_(job_ids))
        .distinct()
        .order_by(metric_series.c.name)
    )
    names: dict[str, list[str]] = {job_id: [] for job_id in job_ids}
    for job_id, name in connection.execute(query):
        names[job_id].append(name)
    return names


def last_step_of(connection: Connection, job_id: str) -> int:
    """Return the last step of the newest attempt, at least its start step; 0 without an attempt."""
    query = select(attempts.c.last_step, attempts.c.start_step).where(attempts.c.job_id == job_id)
    row = connection.execute(query.order_by(attempts.c.number.desc()).limit(1)).one_or_none()
    return max(row) if row else 0


def draw(
    connection: Connection, drawn: Sequence[Curve], *, first: int, last: int, limit: int
) -> list[CurveView]:
    """Return the curves with points in the steps `first..last`, up to `limit` buckets each."""
    curves = _stored_curves(connection, drawn, first=first, last=last, limit=limit)
    decoded = decode_in_turn(connection, [key for stored in curves for key in stored.to_decode()])
    drawings = [(stored.curve, stored.spans(decoded)) for stored in curves]
    return [_view(curve, spans) for curve, spans in drawings if len(spans)]


def _stored_curves(
    connection: Connection, drawn: Sequence[Curve], *, first: int, last: int, limit: int
) -> list[_StoredCurve]:
    """Return the curves that have points in these steps."""
    attempt_ids = {segment.attempt_id for curve in drawn for segment in curve.segments}
    ids = find_series(connection, attempt_ids, {curve.name for curve in drawn})
    series = read_series(connection, list(ids.values()), first=first, last=last)
    stored_curves = []
    for curve in drawn:
        parts = []
        for segment in curve.segments:
            clipped = segment.between(first, last)
            stored = series.get(ids.get((segment.attempt_id, curve.name), -1))
            if stored is None:
                continue
            part = stored.between(clipped.after + 1, clipped.until)
            if len(part.chunks) or len(part.tail):
                parts.append((clipped, part))
        if parts:
            stored_curves.append(_StoredCurve(curve, parts, limit))
    return stored_curves


def _spans_of(points: Points, segment: Segment) -> Spans:
    return Spans.of_points(points.between(segment.after + 1, segment.until))


def _view(curve: Curve, buckets: Spans) -> CurveView:
    return CurveView(
        name=curve.name,
        branch=curve.branch,
        steps=buckets.last.tolist(),
        first_steps=buckets.first.tolist(),
        min=or_none(buckets.low),
        max=or_none(buckets.high),
        last=or_none(buckets.last_value),
        count=buckets.count.tolist(),
        non_finite=buckets.non_finite.tolist(),
    )


def or_none(values: Floats) -> list[float | None]:
    """Return the values for a view; NaN and infinite values become None."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
