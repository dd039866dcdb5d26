"""Reads series for charts: summaries of chunks, live points, and buckets of both.

Most chunks are read only as summaries. A chunk is decoded if the end of a segment cuts it, or if it
is wider than `charts.WIDEST` buckets. Any other chunk goes whole into the bucket that contains its
middle. A bucket is an exact summary of the steps that it names, so it hides no NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Select,
    and_,
    bindparam,
    cast,
    column,
    func,
    join,
    select,
)

from server.core.database.engine import batches
from server.core.database.metric_and_log_tables import metric_chunks, metric_series
from server.telemetry.metrics.points import PACKED, Floats, Integers, Points, unpack
from server.telemetry.metrics.store import read_tails

MERGED_AT = 60_000
"""`Buckets` merges its spans if they outnumber the buckets by more than this number; a span takes
64 bytes."""
DECODED_AT_ONCE = 100
"""Number of chunks that are decoded together; their points take 2.4 MB."""
SUMMARY = ("first_step", "last_step", "count", "non_finite", "min", "max", "last")
"""Columns of `metric_chunks` in the order of the fields of `Spans`."""

_ELEMENTS: Mapping[str, Callable[[Any], Any]] = {
    "postgresql": func.json_array_elements,
    "sqlite": func.json_each,
}
"""SQL functions that turn a list into rows, by dialect."""

ChunkKey = tuple[int, int]
"""Id of the series and first step of the chunk."""
Values = tuple[Integers, Floats]
"""Steps and values of some points."""


@dataclass(frozen=True)
class Spans:
    """Summaries of disjoint spans of steps in ascending order: chunks, buckets or single points."""

    first: Integers
    """First step of each span."""
    last: Integers
    """Last step of each span."""
    count: Integers
    """Number of points in each span."""
    non_finite: Integers
    """Number of NaN and infinite points in each span."""
    low: Floats
    """Smallest finite value of each span; NaN if the span has no finite value."""
    high: Floats
    """Largest finite value of each span; NaN if the span has no finite value."""
    last_value: Floats
    """Last finite value of each span; NaN if the span has no finite value."""

    @classmethod
    def of_points(cls, points: Points) -> Self:
        """Return one span per point."""
        finite = np.isfinite(points.values)
        shown = np.where(finite, points.values, np.nan)
        return cls(
            first=points.steps,
            last=points.steps,
            count=np.ones(len(points), dtype=np.int64),
            non_finite=(~finite).astype(np.int64),
            low=shown,
            high=shown,
            last_value=shown,
        )

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Return the spans of several parts in the order of their steps."""
        listed = [cls.of_points(Points.joined([])), *parts]
        order = np.argsort(np.concatenate([part.first for part in listed]), kind="stable")
        columns = [
            np.concatenate(column)[order] for column in zip(*map(_columns, listed), strict=True)
        ]
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: NDArray[np.bool_] | slice) -> Spans:
        return Spans(*(column[index] for column in _columns(self)))


class Buckets:
    """Merges the spans of a curve into at most `limit` buckets, if the curve has more spans.

    The steps are cut into `limit` equal cells, and a span belongs to the cell that contains its
    middle. So a bucket is exact over the steps that it covers, and it extends at most half a span
    beyond its cell. Spans are merged from time to time, which limits the memory of a curve.
    """

    def __init__(self, *, first: int, last: int, limit: int) -> None:
        """Cut the steps `first..last` into `limit` cells."""
        self._first, self._last, self._limit = first, last, limit
        self._parts: list[tuple[Integers, Spans]] = []  # the cell of each span, and the spans
        self._size = 0
        self._merged = False

    def add(self, spans: Spans) -> None:
        """Add spans, in ascending order of their steps."""
        middles = (spans.first + spans.last) // 2
        cells = (middles - self._first) * self._limit // (self._last - self._first + 1)
        self._parts.append((cells, spans))
        self._size += len(spans)
        if self._size > self._limit + MERGED_AT:
            self._merge()

    def spans(self) -> Spans:
        """Return the added spans, merged into at most one bucket per cell."""
        if self._size > self._limit or self._merged:
            self._merge()
        return Spans.joined(spans for _, spans in self._parts)

    def _merge(self) -> None:
        # Segments of a program can overlap, because it may save at any step.
        order = np.argsort(np.concatenate([spans.first for _, spans in self._parts]), kind="stable")
        cells = np.concatenate([cells for cells, _ in self._parts])[order]
        spans = Spans.joined(spans for _, spans in self._parts)
        starts = np.flatnonzero(np.diff(cells, prepend=cells[0] - 1))
        ends = np.append(starts[1:], len(spans)) - 1
        merged = Spans(
            first=spans.first[starts],
            last=np.maximum.reduceat(spans.last, starts),
            count=np.add.reduceat(spans.count, starts),
            non_finite=np.add.reduceat(spans.non_finite, starts),
            low=np.fmin.reduceat(spans.low, starts),
            high=np.fmax.reduceat(spans.high, starts),
            last_value=_last_finite(spans.last_value, starts, ends),
        )
        self._parts, self._size, self._merged = [(cells[starts], merged)], len(merged), True


def _last_finite(values: Floats, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> Floats:
    known = np.where(np.isnan(values), -1, np.arange(len(values)))
    newest = np.maximum.accumulate(known)[ends]
    return np.where(newest >= starts, values[newest], np.nan)


@dataclass(frozen=True)
class Series:
    """One series, limited to some steps."""

    id: int
    chunks: Spans
    """Summaries of the chunks that overlap the steps."""
    tail: Points
    """Live points, all of them after the last chunk."""

    def between(self, first: int, last: int) -> Series:
        """Return the chunks that overlap `first..last`, and the live points in that range."""
        overlaps = (self.chunks.last >= first) & (self.chunks.first <= last)
        return Series(self.id, self.chunks[overlaps], self.tail.between(first, last))


def find_series(
    connection: Connection, attempt_ids: Collection[str], names: Collection[str]
) -> dict[tuple[str, str], int]:
    """Return the ids of series by attempt id and name."""
    columns = metric_series.c
    query = select(columns.attempt_id, columns.name, columns.id).where(
        columns.attempt_id.in_(attempt_ids), columns.name.in_(names)
    )
    return {(row.attempt_id, row.name): row.id for row in connection.execute(query)}


def read_series(
    connection: Connection, series_ids: Sequence[int], *, first: int, last: int
) -> dict[int, Series]:
    """Return the steps `first..last` of several series, with a fixed number of queries."""
    points = read_tails(connection, series_ids, first=first, last=last)
    columns = metric_chunks.c
    query = (
        select(columns.series_id, *(columns[name] for name in SUMMARY))
        .where(
            columns.series_id.in_(series_ids),
            columns.last_step >= first,
            columns.first_step <= last,
        )
        .order_by(columns.series_id, columns.first_step)
    )
    rows = connection.execute(query).all()
    chunks = {key: _spans(list(group)) for key, group in groupby(rows, attrgetter("series_id"))}
    none, empty = Spans.joined([]), Points.joined([])
    series = {}
    for key in chunks.keys() | points.keys():
        summaries, tail = chunks.get(key, none), points.get(key, empty)
        # A point that was compacted between the two queries was read twice.
        end = int(summaries.last[-1]) if len(summaries) else -1
        series[key] = Series(key, summaries, tail[tail.steps > end])
    return series


def decode(connection: Connection, keys: Iterable[ChunkKey]) -> dict[ChunkKey, Points]:
    """Return the points of chunks by their keys."""
    if not (wanted := sorted(set(keys))):
        return {}
    rows = connection.execute(_chunks_of_keys(connection.dialect.name), {"keys": wanted})
    return {(row.series_id, row.first_step): unpack(*row[1:]) for row in rows}


def decode_in_turn(connection: Connection, keys: Sequence[ChunkKey]) -> Iterator[Points]:
    """Yield the points of each of the given chunks, reading several chunks per query."""
    none = Points.joined([])
    for some in batches(keys, DECODED_AT_ONCE):
        found = decode(connection, some)
        yield from (found.get(key, none) for key in some)  # a job may be deleted meanwhile


@cache
def _chunks_of_keys(dialect: str) -> Select[Any]:
    """Return the query for the chunks that the parameter `keys` lists.

    The query is a join, because SQLite reads the whole table for `(a, b) IN (...)`. The list is one
    parameter, because a statement with a parameter per key is compiled for each number of keys.
    """
    columns = metric_chunks.c
    listed = _ELEMENTS[dialect](bindparam("keys", type_=JSON)).table_valued(column("value", JSON))
    series_id, first_step = (
        cast(listed.c.value[place].as_string(), BigInteger) for place in range(2)
    )
    return select(columns.series_id, *(columns[name] for name in PACKED)).select_from(
        join(
            listed,
            metric_chunks,
            and_(columns.series_id == series_id, columns.first_step == first_step),
        )
    )


def read_values(
    connection: Connection, series_ids: Sequence[int], *, first: int, last: int
) -> dict[int, Values]:
    """Return every point of several series in the steps `first..last`, by series id."""
    series = read_series(connection, series_ids, first=first, last=last).values()
    decoded = decode(
        connection, ((one.id, int(step)) for one in series for step in one.chunks.first)
    )
    found = {}
    for one in series:
        parts = [decoded[one.id, int(step)] for step in one.chunks.first]
        inside = Points.joined([*parts, one.tail]).between(first, last)
        found[one.id] = inside.steps, inside.values
    return found


def values_at(
    connection: Connection, series_ids: Iterable[int], *, steps: Collection[int]
) -> dict[tuple[int, int], float]:
    """Return the values of several series at exactly these steps, by series id and step.

    Only the chunks that contain one of the steps are decoded.
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


def _spans(rows: Sequence[Sequence[Any]]) -> Spans:
    _, *columns = zip(*rows, strict=True)
    types: list[Any] = [np.int64] * 4 + [np.float64] * 3  # as a float, None becomes NaN
    return Spans(*(np.array(column, kind) for column, kind in zip(columns, types, strict=True)))


def _columns(spans: Spans) -> tuple[NDArray[Any], ...]:
    return tuple(vars(spans).values())
