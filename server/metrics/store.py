"""The store of points: a narrow tail for live ones, chunks of a thousand for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import psycopg
from sqlalchemy import Connection, Table, bindparam, delete, func, insert, select, update

from server.database.metric_and_log_tables import (
    metric_chunks,
    metric_series,
    metric_tail,
    step_digests,
)
from server.metrics.points import CHUNK_POINTS, Points, chunked, code_of, value_of
from trainyard.run.records import MetricRecord

TAIL_LIMIT = 2000
"""Points in the tail of a series above which it is compacted."""
COMPACTED_AT_ONCE = 100
"""Series that one report compacts because of their tails; the others wait for the next one."""
COPIED_FROM = 50
"""Most rows that one INSERT holds on PostgreSQL: COPY takes more messages, and less for a row."""
MAX_SERIES = 2000
"""Metric names of one attempt; further ones are left out."""


_SERIES_OF = select(
    metric_series.c.id, metric_series.c.name, metric_series.c.last_step, metric_series.c.tail
).where(metric_series.c.attempt_id == bindparam("attempt_id"))
_GROW_SERIES = (
    update(metric_series)
    .where(metric_series.c.id == bindparam("series"))
    .values(last_step=bindparam("newest"), tail=bindparam("size"))
)
_NEWEST_DIGEST = select(func.max(step_digests.c.step)).where(
    step_digests.c.attempt_id == bindparam("attempt_id")
)


@dataclass(frozen=True)
class _Series:
    id: int
    name: str
    last_step: int
    tail: int


@dataclass(frozen=True)
class _Growth:
    """New points of one series."""

    series: _Series
    points: Points

    @property
    def tail(self) -> int:
        return self.series.tail + len(self.points)


def store_metrics(
    connection: Connection, attempt_id: str, metrics: Sequence[MetricRecord]
) -> Sequence[str]:
    """Store an attempt's metrics as points, and their digests; return the names above `MAX_SERIES`.

    A step is stored once for each series: a record of a step which the series has reached is
    ignored there. (The caller's offsets keep records from coming twice.)
    """
    left_out = store_points(connection, attempt_id, _points_of(metrics))
    _store_digests(connection, attempt_id, metrics)
    return left_out


def store_points(
    connection: Connection, attempt_id: str, points: dict[str, Points]
) -> Sequence[str]:
    """Store points of an attempt by the names of their series; return those above `MAX_SERIES`.

    The work is bounded by the points given and `COMPACTED_AT_ONCE` tails.
    """
    series, left_out = _series(connection, attempt_id, points.keys())
    grown = [
        _Growth(series[name], fresh)
        for name, own in points.items()
        if name in series and len(fresh := own.rising_after(series[name].last_step))
    ]
    compacted, appended = _split_due(grown)
    left = [*appended, *_compact(connection, compacted)]
    _insert(connection, metric_tail, (row for growth in left for row in _tail_rows(growth)))
    sizes = {growth.series.id: growth.tail for growth in left}
    if grown:
        connection.execute(
            _GROW_SERIES,
            [
                {
                    "series": growth.series.id,
                    "newest": int(growth.points.steps[-1]),
                    "size": sizes[growth.series.id],
                }
                for growth in grown
            ],
        )
    return left_out


def read_tails(
    connection: Connection, series_ids: Iterable[int], *, first: int, last: int
) -> dict[int, Points]:
    """Return the live points of these steps, by series.

    Read them before the chunks. A point that is compacted between the two queries then comes
    twice, not never: the reader drops the tail's points up to the last chunk's end.
    """
    query = (
        select(metric_tail)
        .where(
            metric_tail.c.series_id.in_(list(series_ids)), metric_tail.c.step.between(first, last)
        )
        .order_by(metric_tail.c.series_id, metric_tail.c.step)
    )
    points = {}
    for series_id, rows in groupby(connection.execute(query).all(), itemgetter(0)):
        _, steps, times, values, codes = zip(*rows, strict=True)
        points[series_id] = Points.of(steps, times, map(value_of, values, codes))
    return points


def newest_values(connection: Connection, attempt_id: str, name: str, *, limit: int) -> list[float]:
    """Return the last live values of a series, the newest first; few or none just after chunks."""
    query = (
        select(metric_tail.c.value, metric_tail.c.non_finite)
        .join(metric_series, metric_series.c.id == metric_tail.c.series_id)
        .where(metric_series.c.attempt_id == attempt_id, metric_series.c.name == name)
        .order_by(metric_tail.c.step.desc())
        .limit(limit)
    )
    return [value_of(value, code) for value, code in connection.execute(query)]


def _points_of(metrics: Iterable[MetricRecord]) -> dict[str, Points]:
    """Return the points of each series, by its name."""
    columns: dict[str, tuple[list[int], list[float], list[float]]] = {}
    for record in metrics:
        step, time = record.step, record.time
        for name, value in record.values.items():
            steps, times, values = columns.setdefault(name, ([], [], []))
            steps.append(step)
            times.append(time)
            values.append(value)
    return {name: Points.of(*column) for name, column in columns.items()}


def _series(
    connection: Connection, attempt_id: str, names: Iterable[str]
) -> tuple[dict[str, _Series], list[str]]:
    """Return the series of these names, created if missing, and the names above `MAX_SERIES`."""
    found = _read_series(connection, attempt_id)
    missing = [name for name in names if name not in found]
    room = max(MAX_SERIES - len(found), 0)
    if fresh := missing[:room]:
        rows = [{"attempt_id": attempt_id, "name": name} for name in fresh]
        connection.execute(insert(metric_series), rows)
        found = _read_series(connection, attempt_id)
    return found, missing[room:]


def _read_series(connection: Connection, attempt_id: str) -> dict[str, _Series]:
    found = connection.execute(_SERIES_OF, {"attempt_id": attempt_id})
    return {row.name: _Series(*row) for row in found}


def _split_due(grown: Iterable[_Growth]) -> tuple[list[_Growth], list[_Growth]]:
    """Split the series into those that are compacted now and those that only grow."""
    bulky: list[_Growth] = []
    small: list[_Growth] = []
    for growth in grown:
        (bulky if len(growth.points) >= CHUNK_POINTS else small).append(growth)
    small.sort(key=lambda growth: growth.tail, reverse=True)
    due = [growth for growth in small[:COMPACTED_AT_ONCE] if growth.tail > TAIL_LIMIT]
    return bulky + due, small[len(due) :]


def _compact(connection: Connection, grown: Sequence[_Growth]) -> list[_Growth]:
    """Move full chunks out of the tails; return what is left of each series, to be appended."""
    with_tail = [growth.series.id for growth in grown if growth.series.tail]
    tails = read_tails(connection, with_tail, first=0, last=2**62) if with_tail else {}
    chunks: list[dict[str, Any]] = []
    ends: list[dict[str, int]] = []
    left = []
    for growth in grown:
        series = growth.series
        whole = Points.joined([*filter(None, [tails.get(series.id)]), growth.points])
        rows, rest = chunked(whole)
        chunks += ({"series_id": series.id, **row} for row in rows)
        if series.tail:
            ends.append({"series": series.id, "end": rows[-1]["last_step"]})
        kept = max(len(rest) - len(growth.points), 0)  # of the tail as it was
        left.append(_Growth(_Series(series.id, series.name, 0, kept), rest[kept:]))
    if chunks:
        connection.execute(insert(metric_chunks), chunks)
    if ends:
        connection.execute(
            delete(metric_tail).where(
                metric_tail.c.series_id == bindparam("series"),
                metric_tail.c.step <= bindparam("end"),
            ),
            ends,
        )
    return left


def _tail_rows(growth: _Growth) -> Iterator[tuple[int, int, float, float | None, int]]:
    points = growth.points
    for step, time, value in zip(
        points.steps.tolist(), points.times.tolist(), points.values.tolist(), strict=True
    ):
        code = code_of(value)
        yield growth.series.id, step, time, None if code else value, code


def _store_digests(
    connection: Connection, attempt_id: str, metrics: Iterable[MetricRecord]
) -> None:
    digests = {record.step: record.data_digest for record in metrics if record.data_digest}
    if not digests:
        return
    stored = connection.scalar(_NEWEST_DIGEST, {"attempt_id": attempt_id})
    fresh = (
        (attempt_id, step, digest)
        for step, digest in digests.items()
        if stored is None or step > stored
    )
    _insert(connection, step_digests, fresh)


def _insert(connection: Connection, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert narrow rows, all columns in their order; on PostgreSQL many of them by COPY."""
    if not (listed := list(rows)):
        return
    into = f"{table.name} ({', '.join(table.c.keys())})"
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" for _ in table.c)
        connection.exec_driver_sql(f"INSERT INTO {into} VALUES ({marks})", listed)  # noqa: S608
        return
    if len(listed) <= COPIED_FROM:
        marks = ", ".join(f"({', '.join('%s' for _ in table.c)})" for _ in listed)
        values = tuple(chain.from_iterable(listed))
        connection.exec_driver_sql(f"INSERT INTO {into} VALUES {marks}", values)  # noqa: S608
        return
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    with raw.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
        for row in listed:
            copy.write_row(row)
