"""Time axes of a lineage: the time of each step, and the tokens trained until the step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, LargeBinary, func, select

from server.core.database.metric_and_log_tables import metric_chunks
from server.jobs.attempts.lineage import NEVER, Segment
from server.telemetry.metrics.points import Floats, Integers, Points
from server.telemetry.metrics.series import decode, find_series
from server.telemetry.metrics.store import read_tails

TOKENS = "train/tokens"
"""Series with time and tokens in its points; the trainer writes a point at each logged step."""
LOSS = "train/loss"
FLOAT_BYTES = 8

Axis = Literal["step", "tokens", "seconds"]
"""Unit of a curve's x-axis: steps, trained tokens, or seconds since the job's first point."""
Stretch = tuple[int, int] | None
"""First and last step of a range; None if the range is empty."""


@dataclass(frozen=True)
class _Closed:
    """A chunk that is not decoded, so that only its first and last point are known."""

    segment: Segment
    series_id: int
    first: int
    last: int
    has_tokens: bool


@dataclass(frozen=True)
class StepTimes:
    """Time and tokens along a lineage, known at live points and at the ends of chunks.

    `refined` decodes the chunks that contain the end of a bucket, so that the values there are
    exact. For a million points, one thousand narrow rows are read.
    """

    points: Points
    """Known steps in ascending order; the values are tokens, or NaN if unknown."""
    closed: tuple[_Closed, ...]

    @property
    def start(self) -> float | None:
        """Unix time of the first point, in seconds; None without points."""
        return float(self.points.times[0]) if len(self.points) else None

    def refined(self, connection: Connection, steps: Sequence[int]) -> StepTimes:
        """Decode the chunks that contain at least one of `steps`, which are in ascending order.

        The first and the last step of a chunk do not count, because their values are known.
        """
        opened: list[_Closed] = []
        left: list[_Closed] = []
        for chunk in self.closed:
            is_cut = bisect_right(steps, chunk.first) < bisect_left(steps, chunk.last)
            (opened if is_cut else left).append(chunk)
        if not opened:
            return self
        found = decode(connection, [(chunk.series_id, chunk.first) for chunk in opened])
        parts = [
            _within(chunk.segment, found[chunk.series_id, chunk.first], tokens=chunk.has_tokens)
            for chunk in opened
            if (chunk.series_id, chunk.first) in found
        ]
        return StepTimes(Points.merged([self.points, *parts]), tuple(left))

    def at(self, steps: Integers) -> tuple[Floats, Floats]:
        """Return time and tokens of the last point up to each step; NaN before the first point."""
        places = np.searchsorted(self.points.steps, steps, "right")
        times, tokens = self.points.times, self.points.values
        return np.append(np.nan, times)[places], np.append(np.nan, tokens)[places]

    def sharpened(
        self, connection: Connection, axis: Axis, *, low: float, high: float
    ) -> tuple[StepTimes, Stretch]:
        """Decode the chunks at both ends of a range; return refined times and the range's steps."""
        rough = self.steps_between(axis, low, high)
        if rough is None or axis == "step":
            return self, rough
        # The ends of the range lie in the chunks that contain the next steps inside of `rough`.
        sharp = self.refined(connection, sorted((rough[0] + 1, rough[1] - 1)))
        return sharp, sharp.steps_between(axis, low, high)

    def steps_between(self, axis: Axis, low: float, high: float) -> Stretch:
        """Return first and last step of a range on an axis; None if all points are on one side.

        Both ends extend to the next known step beyond the range, so that a curve leaves the frame
        instead of ending within it. A range of steps is not extended, and is never None.
        """
        if axis == "step":
            return int(min(low, NEVER)), int(min(np.ceil(high), NEVER))
        start = self.start or 0.0
        raw = self.points.values if axis == "tokens" else self.points.times - start
        known = ~np.isnan(raw)
        places = np.maximum.accumulate(raw[known])  # clocks of two machines may differ
        steps = self.points.steps[known]
        if not len(places) or places[0] > high or places[-1] < low:
            return None
        first = max(int(np.searchsorted(places, low, "right")) - 1, 0)
        last = min(int(np.searchsorted(places, high, "left")), len(places) - 1)
        return int(steps[first]), int(steps[last])


def read_step_times(
    connection: Connection, segments: Sequence[Segment], names: Iterable[str]
) -> StepTimes:
    """Return the step times of a lineage, with a fixed number of queries.

    If an attempt has no tokens, its times come from its loss or from its first series in `names`.
    """
    candidates = (TOKENS, LOSS, *names)
    ids = find_series(connection, [segment.attempt_id for segment in segments], candidates)
    chosen = list(_chosen(segments, candidates, ids))
    wanted = [series_id for _, series_id, _ in chosen]
    tails = read_tails(connection, wanted, first=0, last=NEVER)  # read before the chunks
    chunks = _ends(connection, wanted)
    parts, closed = [], []
    for segment, series_id, has_tokens in chosen:
        for ends in chunks.get(series_id, ()):
            parts.append(_within(segment, ends, tokens=has_tokens))
            first, last = int(ends.steps[0]), int(ends.steps[-1])
            closed.append(_Closed(segment, series_id, first, last, has_tokens))
        if series_id in tails:
            parts.append(_within(segment, tails[series_id], tokens=has_tokens))
    return StepTimes(Points.merged(parts), tuple(closed))


def _chosen(
    segments: Iterable[Segment], names: Sequence[str], ids: dict[tuple[str, str], int]
) -> Iterator[tuple[Segment, int, bool]]:
    for segment in segments:
        for name in names:
            if (segment.attempt_id, name) in ids:
                yield segment, ids[segment.attempt_id, name], name == TOKENS
                break


def _ends(connection: Connection, wanted: Sequence[int]) -> dict[int, list[Points]]:
    """Return first and last point of each chunk by series id, without reading whole arrays."""
    columns = metric_chunks.c
    query = (
        select(
            *(columns.series_id, columns.first_step, columns.last_step),
            *(number_at(columns.times, 1), last_number_of(columns.times)),
            *(number_at(columns.numbers, 1), last_number_of(columns.numbers)),
        )
        .where(columns.series_id.in_(wanted))
        .order_by(columns.series_id, columns.first_step)
    )
    found: dict[int, list[Points]] = {}
    for series_id, first, last, *numbers in connection.execute(query):
        values: NDArray[np.float64] = np.frombuffer(b"".join(numbers), dtype="<f8")
        ends = Points(np.array([first, last], dtype=np.int64), values[:2], values[2:])
        found.setdefault(series_id, []).append(ends)
    return found


def number_at(array: Any, place: Any) -> Any:
    """Return the SQL expression for 8 bytes of an array from `place` on, counted from 1."""
    return func.substr(array, place, FLOAT_BYTES, type_=LargeBinary)


def last_number_of(array: Any) -> Any:
    """Return the SQL expression for the last 8 bytes of an array of a chunk."""
    return number_at(array, (metric_chunks.c.count - 1) * FLOAT_BYTES + 1)


def _within(segment: Segment, points: Points, *, tokens: bool) -> Points:
    inside = points.between(segment.after + 1, segment.until)
    return inside if tokens else replace(inside, values=np.full(len(inside), np.nan))
