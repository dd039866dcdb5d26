"""Stores points: first as packed rows of a tail (live points), then as chunks of 1,000 points."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import psycopg
from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, func, insert, select

from server.core.database.metric_and_log_tables import metric_chunks, metric_series, metric_tails
from server.telemetry.metrics.points import CHUNK_POINTS, Points, chunked, pack_tail, unpack_tail
from trainyard.run.records import MetricRecord

TAIL_LIMIT = 2000
"""A tail with more points than this number is compacted by this report or one of the next ones."""
COMPACTED_AT_ONCE = 100
"""Maximum number of series that one report compacts because of long tails; the next reports compact
the remaining series.
"""
MAX_SERIES = 2000
"""Maximum number of metric names per attempt; further names are left out."""

_ATTEMPTS: BindParameter[Sequence[str]] = bindparam("attempt_ids", expanding=True)
_SERIES_OF = select(
    metric_series.c.attempt_id,
    metric_series.c.name,
    metric_series.c.id,
    metric_series.c.last_step,
    metric_series.c.tail,
).where(metric_series.c.attempt_id.in_(_ATTEMPTS))
_GROW_SERIES = "UPDATE metric_series SET last_step = ?, tail = ? WHERE id = ?"
_GROW_SERIES_BY_ARRAYS = (
    "UPDATE metric_series SET last_step = grown.newest, tail = grown.size"
    " FROM unnest(%s::bigint[], %s::integer[], %s::bigint[]) AS grown (newest, size, series)"
    " WHERE id = grown.series"
)
"""Statement for PostgreSQL that updates all series with one message."""
_DELETE_TAILS = delete(metric_tails).where(
    metric_tails.c.series_id.in_(bindparam("series", expanding=True))
)
_STORE_DIGESTS = (
    "INSERT INTO step_digests (attempt_id, step, digest) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
)
_STORE_DIGESTS_BY_ARRAYS = (
    "INSERT INTO step_digests (attempt_id, step, digest)"
    " SELECT * FROM unnest(%s::varchar[], %s::bigint[], %s::varchar[]) ON CONFLICT DO NOTHING"
)

SeriesKey = tuple[str, str]
"""Attempt id and name of a series."""
Columns = tuple[list[int], list[float], list[float]]
"""Steps, Unix times and values of some points of a series."""


@dataclass(frozen=True, slots=True)
class _Growth:
    """Points to append to the tail of one series, in ascending order of their steps."""

    series: int
    """Id of the series."""
    tail: int
    """Number of points in the tail before the append."""
    columns: Columns

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def grown(self) -> int:
        """Number of points in the tail after the append."""
        return self.tail + len(self)


def store_metrics(
    connection: Connection, metrics: Mapping[str, Sequence[MetricRecord]]
) -> Mapping[str, Sequence[str]]:
    """Store new records, which are in the order of steps, as points; also store their digests.

    Each series stores a step once and ignores records up to its last step. The transaction must
    exclude other transactions that store metrics of the same attempts, for example by the jobs'
    locks, because the rows of a tail must not overlap. The number of statements does not depend on
    the number of attempts.

    Returns:
        Names above `MAX_SERIES` by attempt id; attempts without such names are omitted.
    """
    left_out = _store_columns(connection, _points_of(metrics))
    _store_digests(connection, metrics)
    return left_out


def store_points(
    connection: Connection, attempt_id: str, points: Mapping[str, Points]
) -> Sequence[str]:
    """Store points by series name as `store_metrics` does; return the names above `MAX_SERIES`."""
    columns = {(attempt_id, name): own.columns for name, own in points.items()}
    return _store_columns(connection, columns).get(attempt_id, ())


def _store_columns(
    connection: Connection, points: Mapping[SeriesKey, Columns]
) -> dict[str, list[str]]:
    """Store points by series; return the names above `MAX_SERIES` by attempt id."""
    if not points:
        return {}
    series, left_out = _series(connection, points)
    grown: list[_Growth] = []
    newest: dict[int, int] = {}
    for key, own in points.items():
        if key not in series:
            continue
        series_id, last_step, tail = series[key]
        fresh = _rising_after(last_step, own)
        if fresh[0]:
            grown.append(_Growth(series_id, tail, fresh))
            newest[series_id] = fresh[0][-1]
    compacted, appended = _split_due(grown)
    left = [*appended, *_compact(connection, compacted)]
    rows = [
        (each.series, newest[each.series], each.columns[0][0], pack_tail(*each.columns))
        for each in left
        if each
    ]
    append_to_tails(connection, rows)
    grow_series(connection, [(newest[each.series], each.grown, each.series) for each in left])
    return left_out


def grow_series(connection: Connection, sizes: Sequence[tuple[int, int, int]]) -> None:
    """Store last steps and tail sizes; each entry has last step, tail size and series id."""
    _run(connection, sizes, sqlite=_GROW_SERIES, postgresql=_GROW_SERIES_BY_ARRAYS)


def read_tails(
    connection: Connection, series_ids: Iterable[int], *, first: int, last: int
) -> dict[int, Points]:
    """Return the live points in the steps `first..last` by series id.

    The caller must read live points before chunks. Then a point that is compacted between the two
    queries is read twice instead of not at all. The caller drops live points that the last chunk
    already contains.
    """
    query = (
        select(metric_tails.c.series_id, metric_tails.c.points)
        .where(
            metric_tails.c.series_id.in_(list(series_ids)),
            metric_tails.c.last_step >= first,
            metric_tails.c.first_step <= last,
        )
        .order_by(metric_tails.c.series_id, metric_tails.c.last_step)
    )
    points = {}
    for series_id, rows in groupby(connection.execute(query).all(), itemgetter(0)):
        found = unpack_tail(row for _, row in rows).between(first, last)
        if len(found):
            points[series_id] = found
    return points


def newest_values(
    connection: Connection, attempt_ids: Sequence[str], name: str, *, limit: int
) -> dict[str, list[float]]:
    """Return up to `limit` live values of a series by attempt id, the newest first.

    Just after a compaction there are few values. Attempts without live values are omitted.
    """
    given = {"attempt_ids": attempt_ids, "name": name, "before": limit - 1}
    rows = connection.execute(_NEWEST_ROWS, given)
    return {
        attempt_id: unpack_tail(row for _, row in own).values[: -limit - 1 : -1].tolist()
        for attempt_id, own in groupby(rows, itemgetter(0))
    }


_older = metric_tails.alias("older")
# A row has at least one point, so `limit` rows suffice.
_FIRST_OF_NEWEST = (
    select(_older.c.last_step)
    .where(_older.c.series_id == metric_series.c.id)
    .order_by(_older.c.last_step.desc())
    .limit(1)
    .offset(bindparam("before"))
    .correlate(metric_series)
    .scalar_subquery()
)
_NEWEST_ROWS = (
    select(metric_series.c.attempt_id, metric_tails.c.points)
    .select_from(metric_series)
    .join(
        metric_tails,
        and_(
            metric_tails.c.series_id == metric_series.c.id,
            metric_tails.c.last_step >= func.coalesce(_FIRST_OF_NEWEST, 0),
        ),
    )
    .where(metric_series.c.attempt_id.in_(_ATTEMPTS), metric_series.c.name == bindparam("name"))
    .order_by(metric_series.c.attempt_id, metric_tails.c.last_step)
)


def _points_of(metrics: Mapping[str, Sequence[MetricRecord]]) -> dict[SeriesKey, Columns]:
    columns: dict[SeriesKey, Columns] = {}
    for attempt_id, records in metrics.items():
        own: defaultdict[str, Columns] = defaultdict(lambda: ([], [], []))
        for record in records:
            for name, value in record.values.items():
                steps, times, values = own[name]
                steps.append(record.step)
                times.append(record.time)
                values.append(value)
        columns |= {(attempt_id, name): found for name, found in own.items()}
    return columns


def _rising_after(step: int, columns: Columns) -> Columns:
    """Return the points whose step is above `step` and above the steps of all earlier points."""
    steps, times, values = columns
    kept = []
    for index, each in enumerate(steps):
        if each > step:
            step = each
            kept.append(index)
    if len(kept) == len(steps):
        return columns
    return [steps[i] for i in kept], [times[i] for i in kept], [values[i] for i in kept]


def _series(
    connection: Connection, columns: Mapping[SeriesKey, Columns]
) -> tuple[dict[SeriesKey, tuple[int, int, int]], dict[str, list[str]]]:
    """Create missing series; return id, last step and tail size of each, and the surplus names."""
    attempt_ids = list(dict.fromkeys(attempt_id for attempt_id, _ in columns))
    found = _read_series(connection, attempt_ids)
    missing = [key for key in columns if key not in found]
    if not missing:
        return found, {}
    count = Counter(attempt_id for attempt_id, _ in found)
    fresh: list[dict[str, str]] = []
    left_out: dict[str, list[str]] = {}
    for attempt_id, name in missing:
        count[attempt_id] += 1
        if count[attempt_id] <= MAX_SERIES:
            fresh.append({"attempt_id": attempt_id, "name": name})
        else:
            left_out.setdefault(attempt_id, []).append(name)
    if fresh:
        connection.execute(insert(metric_series), fresh)
        found = _read_series(connection, attempt_ids)
    return found, left_out


def _read_series(
    connection: Connection, attempt_ids: Sequence[str]
) -> dict[SeriesKey, tuple[int, int, int]]:
    found = connection.execute(_SERIES_OF, {"attempt_ids": attempt_ids})
    return {(attempt_id, name): (*rest,) for attempt_id, name, *rest in found}


def _split_due(grown: Iterable[_Growth]) -> tuple[list[_Growth], list[_Growth]]:
    """Split the series into the ones to compact now and the ones that only grow."""
    bulky: list[_Growth] = []
    small: list[_Growth] = []
    for growth in grown:
        (bulky if len(growth) >= CHUNK_POINTS else small).append(growth)
    small.sort(key=lambda growth: growth.grown, reverse=True)
    due = [growth for growth in small[:COMPACTED_AT_ONCE] if growth.grown > TAIL_LIMIT]
    return bulky + due, small[len(due) :]


def _compact(connection: Connection, grown: Sequence[_Growth]) -> list[_Growth]:
    """Move full chunks out of the tails; return, per series, the remaining points to append."""
    if not grown:
        return []
    with_tail = [growth.series for growth in grown if growth.tail]
    tails = read_tails(connection, with_tail, first=0, last=2**62) if with_tail else {}
    chunks: list[dict[str, Any]] = []
    left = []
    for growth in grown:
        fresh = Points.of(*growth.columns)
        rows, rest = chunked(Points.joined([*filter(None, [tails.get(growth.series)]), fresh]))
        chunks += ({"series_id": growth.series, **row} for row in rows)
        left.append(_Growth(growth.series, 0, rest.columns))
    if chunks:
        connection.execute(insert(metric_chunks), chunks)
    if with_tail:
        connection.execute(_DELETE_TAILS, {"series": with_tail})
    return left


def _store_digests(connection: Connection, metrics: Mapping[str, Sequence[MetricRecord]]) -> None:
    rows = [
        (attempt_id, each.step, each.data_digest)
        for attempt_id, records in metrics.items()
        for each in records
        if each.data_digest
    ]
    _run(connection, rows, sqlite=_STORE_DIGESTS, postgresql=_STORE_DIGESTS_BY_ARRAYS)


def _run(
    connection: Connection, rows: Sequence[tuple[Any, ...]], *, sqlite: str, postgresql: str
) -> None:
    """Run a statement for some rows; the statement for PostgreSQL takes an array per column."""
    if rows and connection.dialect.name == "sqlite":
        connection.exec_driver_sql(sqlite, list(rows))
    elif rows:
        connection.exec_driver_sql(postgresql, tuple(map(list, zip(*rows, strict=True))))


def append_to_tails(connection: Connection, points: Sequence[tuple[int, int, int, bytes]]) -> None:
    """Add rows to tails; a row has series id, last step, first step and packed points."""
    if not points:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            "INSERT INTO metric_tails (series_id, last_step, first_step, points)"
            " VALUES (?, ?, ?, ?)",
            points,
        )
        return
    # On the client, COPY is faster than an INSERT of arrays.
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    into = "COPY metric_tails (series_id, last_step, first_step, points) FROM STDIN"
    with raw.cursor() as cursor, cursor.copy(into) as copy:
        for row in points:
            copy.write_row(row)
