"""Reads series for charts: summaries of chunks, live points, and the few chunks to be decoded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from server.database.tables import metric_chunks
from server.metrics.downsample import Spans
from server.metrics.points import Floats, Integers, Points, unpack_floats, unpack_steps
from server.metrics.store import read_tails

STEPS_AT_ONCE = 10_000
"""Chunks of a series that one query names; SQLite takes 32,766 parameters."""

ChunkKey = tuple[int, int]
"""Series and first step of a chunk."""
Values = tuple[Integers, Floats]
"""Steps and values of some points."""


@dataclass(frozen=True)
class Series:
    """Some steps of one series."""

    id: int
    chunks: Spans
    """Summaries of the chunks that reach into these steps."""
    tail: Points
    """Live points, all after the last chunk."""

    def between(self, first: int, last: int) -> Series:
        """Return what reaches into `first..last`."""
        overlaps = (self.chunks.last >= first) & (self.chunks.first <= last)
        return Series(self.id, self.chunks[overlaps], self.tail.between(first, last))


def read_series(
    connection: Connection, series_ids: Sequence[int], *, first: int, last: int
) -> dict[int, Series]:
    """Return the steps `first..last` of several series; a fixed number of queries."""
    tails = read_tails(connection, series_ids, first=first, last=last)
    columns = metric_chunks.c
    query = (
        select(
            columns.series_id,
            columns.first_step,
            columns.last_step,
            columns.count,
            columns.non_finite,
            columns.min,
            columns.max,
            columns.last,
        )
        .where(
            columns.series_id.in_(series_ids),
            columns.last_step >= first,
            columns.first_step <= last,
        )
        .order_by(columns.series_id, columns.first_step)
    )
    rows = connection.execute(query).all()
    found = {key: _spans(list(group)) for key, group in groupby(rows, attrgetter("series_id"))}
    none, empty = Spans.joined([]), Points.joined([])
    return {
        key: _series(key, found.get(key, none), tails.get(key, empty))
        for key in found.keys() | tails.keys()
    }


def decode(connection: Connection, keys: Iterable[ChunkKey]) -> dict[ChunkKey, Points]:
    """Return the points of these chunks."""
    wanted = set(keys)
    series_ids = {series_id for series_id, _ in wanted}
    first_steps = sorted({first_step for _, first_step in wanted})
    columns = metric_chunks.c
    query = select(
        columns.series_id,
        columns.first_step,
        columns.last_step,
        columns.count,
        columns.steps,
        columns.times,
        columns.numbers,
    ).where(columns.series_id.in_(series_ids))
    decoded = {}
    for start in range(0, len(first_steps), STEPS_AT_ONCE):
        # Not pairs: SQLite reads the whole table for `(a, b) IN (...)`. Series of one attempt are
        # cut at the same steps, so few chunks are fetched twice.
        some = first_steps[start : start + STEPS_AT_ONCE]
        for row in connection.execute(query.where(columns.first_step.in_(some))):
            series_id, first_step, last_step, count, steps, times, numbers = row
            if (series_id, first_step) in wanted:
                decoded[series_id, first_step] = Points(
                    unpack_steps(
                        first_step=first_step, last_step=last_step, count=count, steps=steps
                    ),
                    unpack_floats(times),
                    unpack_floats(numbers),
                )
    return decoded


def read_values(
    connection: Connection, series_ids: Sequence[int], *, first: int, last: int
) -> dict[int, Values]:
    """Return every point of the steps `first..last` of several series."""
    series = read_series(connection, series_ids, first=first, last=last)
    keys = {(one.id, int(step)) for one in series.values() for step in one.chunks.first}
    decoded = decode(connection, keys)
    found = {}
    for one in series.values():
        parts = [decoded[one.id, int(step)] for step in one.chunks.first]
        inside = Points.joined([*parts, one.tail]).between(first, last)
        found[one.id] = inside.steps, inside.values
    return found


def values_at(
    connection: Connection, series_ids: Iterable[int], *, steps: Collection[int]
) -> dict[tuple[int, int], float]:
    """Return the values of several series at these steps alone, by series and step.

    Only the chunks that hold one of the steps are decoded.
    """
    listed = list(series_ids)
    if not listed or not steps:
        return {}
    wanted = np.array(sorted(steps), dtype=np.int64)
    series = read_series(connection, listed, first=int(wanted[0]), last=int(wanted[-1]))
    keys = set()
    for one in series.values():
        at = np.searchsorted(one.chunks.last, wanted)
        inside = at < len(one.chunks)
        inside[inside] = one.chunks.first[at[inside]] <= wanted[inside]
        keys |= {(one.id, int(step)) for step in one.chunks.first[at[inside]]}
    parts = [(key[0], points) for key, points in decode(connection, keys).items()]
    parts += [(one.id, one.tail) for one in series.values()]
    return {
        (series_id, int(step)): float(value)
        for series_id, points in parts
        for step, value in zip(points.steps, points.values, strict=True)
        if int(step) in steps
    }


def _series(series_id: int, chunks: Spans, tail: Points) -> Series:
    # A point that was compacted between the two queries came twice.
    end = int(chunks.last[-1]) if len(chunks) else -1
    return Series(series_id, chunks, tail[tail.steps > end])


def _spans(rows: Sequence[Sequence[Any]]) -> Spans:
    _, first, last, count, non_finite, low, high, last_value = zip(*rows, strict=True)
    return Spans(
        first=np.array(first, dtype=np.int64),
        last=np.array(last, dtype=np.int64),
        count=np.array(count, dtype=np.int64),
        non_finite=np.array(non_finite, dtype=np.int64),
        low=np.array(low, dtype=np.float64),  # None becomes NaN
        high=np.array(high, dtype=np.float64),
        last_value=np.array(last_value, dtype=np.float64),
    )
