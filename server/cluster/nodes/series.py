"""Series of nodes: the samples from heartbeats as values over time, in a bounded number of rows.

A row holds all series of a node over one minute or 15 minutes. For each series, the row has count,
minimum, sum and maximum of the samples, so that a peak stays visible. Times come from the server,
so a wrong clock of a node does not move its points. A node has at most `MINUTES_KEPT +
QUARTERS_KEPT` rows, about 3 KB each with eight GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from math import ceil
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from server.cluster.nodes.queries import one_node
from server.core.context import Context
from server.core.database.metric_and_log_tables import node_points
from server.core.errors import InvalidRequestError
from trainyard.base.problems import Problem
from trainyard.protocol.node_samples import AcceleratorSample, NodeSample

MINUTE, QUARTER = 60, 900
"""Period of a row, in seconds."""
MINUTES_KEPT = 360
"""Maximum number of one-minute rows per node: six hours."""
QUARTERS_KEPT = 1344
"""Maximum number of 15-minute rows per node: fourteen days."""

MAX_POINTS = 20_000
"""Maximum number of points in one response, about 100 bytes each."""

HOST_SERIES = ("load", "memory_bytes", "memory_used_bytes", "disk_bytes", "disk_free_bytes")
NOT_NUMBERS = {"uuid", "problem", "throttle_reasons", "xids", "foreign"}
"""Fields of a device's sample that have no series."""
_NUMBERS = tuple(
    (name, f"gpu_{name}") for name in AcceleratorSample.model_fields if name not in NOT_NUMBERS
)
"""Fields of a device's sample that have a series, each with the name of the series."""
HIGHEST = {
    "gpu_temperature_celsius",
    "gpu_throttled",
    "gpu_row_remap_pending",
    "gpu_row_remap_failed",
}
"""Series for which a node's value is the highest value of its devices."""
SERIES = frozenset({*HOST_SERIES, "gpu_throttled"} | {series for _, series in _NUMBERS})
"""Names of all series."""

MAX_VALUE = 2.0**64
"""Maximum absolute value of a point; larger values, NaN and infinity are driver errors, not
points."""

Summary = list[float]
"""Count, minimum, sum and maximum of a series; if all values are equal, only count and value."""
SeriesRow = tuple[int, Mapping[str, Summary]]
"""Start of a row in Unix seconds, and the summaries of its series. The key of a summary is the name
of the series, `/`, and the part of the node.
"""


def device_values(sample: AcceleratorSample) -> Iterator[tuple[str, float]]:
    """Yield the name of a series and its value for each number in a device's sample.

    The name of a quantity with a unit ends in the unit.
    """
    for name, series in _NUMBERS:
        value = getattr(sample, name)
        if value is not None:
            yield series, float(value)
    if sample.throttle_reasons is not None:
        yield "gpu_throttled", float(bool(sample.throttle_reasons))


def node_values(sample: NodeSample) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each series of `device_values`, combined over a node's devices.

    Temperatures and flags are combined by maximum, ratios and clocks by mean, all others by sum.
    """
    values: dict[str, list[float]] = {}
    for device in sample.accelerators:
        for name, value in device_values(device):
            values.setdefault(name, []).append(value)
    for name, each in values.items():
        if name in HIGHEST:
            yield name, max(each)
        else:
            yield name, sum(each) / (len(each) if name.endswith(("_ratio", "_hertz")) else 1)


def host_values(sample: NodeSample) -> Iterator[tuple[str, str, float]]:
    """Yield the name of a series, the disk and the value for each number in a host's sample.

    The disk is empty for numbers of the host itself.
    """
    host = sample.host
    yield "load", "", host.load
    yield "memory_bytes", "", host.memory_bytes
    yield "memory_used_bytes", "", host.memory_used_bytes
    for disk in host.disks:
        yield "disk_bytes", disk.name, disk.total_bytes
        yield "disk_free_bytes", disk.name, disk.free_bytes


# These statements run for almost every group of heartbeats, so they are built once.
_OF_NODES = node_points.c.node.in_(bindparam("of_nodes", expanding=True))
_OF_START = (
    node_points.c.seconds == bindparam("of_seconds"),
    node_points.c.start == bindparam("from_start"),
)
_MINUTES = select(node_points.c.node, node_points.c.data).where(_OF_NODES, *_OF_START)
_ADD = update(node_points).where(node_points.c.node == bindparam("of_node"), *_OF_START)


def store_samples(
    connection: Connection, samples: Mapping[str, NodeSample], *, now: datetime
) -> None:
    """Add the sample of each node to the series of the node.

    The caller has locked the rows of the nodes, so that no sample is added twice.
    """
    start = _minute_of(now)
    minute = {"of_seconds": MINUTE, "from_start": start}
    rows = connection.execute(_MINUTES, {"of_nodes": [*samples], **minute})
    before: dict[str, Mapping[str, Summary]] = {row.node: row.data for row in rows}
    changed: list[dict[str, Any]] = []
    new: dict[str, Mapping[str, Summary]] = {}
    for node, sample in samples.items():
        values: dict[str, Summary] = {
            f"{name}/{part}": [1, value] for name, part, value in _values(sample)
        }
        if node in before:
            data = _merged([before[node], values])
            changed.append({"of_node": node, **minute, "data": data})
        else:
            new[node] = values
    if changed:
        connection.execute(_ADD, changed)
    if new:
        _put(connection, MINUTE, start=start, rows=new)
        _sum_up(connection, [*new], start)


def read_metrics(
    context: Context, name: str, *, hours: int, names: Collection[str] = ()
) -> dict[str, Any]:
    """Return a `NodeMetrics`: the newest sample of a node, and its curves over the last hours.

    There are at most `MAX_POINTS` points, so each point covers a longer period if there are more
    series. Points are plain dicts, because the creation of models would take longer than everything
    else. Without `names`, all series are returned.

    Raises:
        InvalidRequestError: a name is not the name of a series.
        NotFoundError: no node has this name.
    """
    if unknown := sorted(set(names) - SERIES):
        raise InvalidRequestError.of(
            Problem(
                pointer="query/names",
                detail=f"no node has a series {one!r}; legal: {', '.join(sorted(SERIES))}",
            )
            for one in unknown
        )
    with context.database.snapshot() as connection:
        node = one_node(connection, name)
        seconds, rows = _read_rows(connection, name, now=context.now(), hours=hours, names=names)
    slots = {device.uuid: slot for slot, device in enumerate(node.hardware.accelerators)}
    curves: dict[str, list[dict[str, Any]]] = {}
    for start, data in rows:
        at = datetime.fromtimestamp(start, UTC)
        for key, (count, *numbers) in data.items():
            low, total, high = numbers if len(numbers) > 1 else _constant(count, numbers[0])
            point = {"time": at, "min": low, "mean": total / count, "max": high}
            curves.setdefault(key, []).append(point)
    return {
        "name": name,
        "sampled_at": None if node.sample is None else node.heartbeat_at,
        "sample": None if node.sample is None else node.sample.model_dump(mode="json"),
        "seconds": seconds,
        "curves": [
            {"name": name, "part": part or None, "slot": slots.get(part), "points": points}
            for key, points in sorted(curves.items())
            for name, _, part in [key.partition("/")]
        ],
    }


def _read_rows(
    connection: Connection, node: str, *, now: datetime, hours: int, names: Collection[str]
) -> tuple[int, list[SeriesRow]]:
    """Return the seconds that each row covers, and the rows of the last hours in order of time."""
    seconds = MINUTE if hours * 3600 <= MINUTES_KEPT * MINUTE else QUARTER
    points, since = node_points.c, _minute_of(now) - hours * 3600
    query = select(points.start, points.data).where(
        points.node == node, points.seconds == seconds, points.start >= since
    )
    newest = connection.execute(query.order_by(points.start.desc()).limit(1)).first()
    series = 0 if newest is None else len(_named(newest.data, names))
    # Rows are merged while they are read, because all rows of many devices would fill the memory.
    seconds *= max(ceil(series * hours * 3600 / seconds / MAX_POINTS), 1)
    found = connection.execute(query.order_by(points.start).execution_options(yield_per=100))
    rows = list(_coarser(((start, _named(data, names)) for start, data in found), seconds))
    while len(rows) > 1 and sum(len(data) for _, data in rows) > MAX_POINTS:
        # Older rows have more series than the newest row, from which the period was estimated.
        seconds *= 2
        rows = list(_coarser(rows, seconds))
    return seconds, rows


def _named(data: Mapping[str, Summary], names: Collection[str]) -> Mapping[str, Summary]:
    if not names:
        return data
    return {key: summary for key, summary in data.items() if key.partition("/")[0] in names}


def _coarser(rows: Iterable[SeriesRow], seconds: int) -> Iterator[SeriesRow]:
    """Merge rows, in order of time, into rows that cover `seconds` each."""
    for start, some in groupby(rows, lambda row: row[0] // seconds * seconds):
        yield start, _merged(data for _, data in some)


def _values(sample: NodeSample) -> Iterator[tuple[str, str, float]]:
    values = [*host_values(sample)]
    for device in sample.accelerators:
        values += ((name, device.uuid, value) for name, value in device_values(device))
    return (each for each in values if -MAX_VALUE < each[2] < MAX_VALUE)


def _sum_up(connection: Connection, nodes: Sequence[str], start: int) -> None:
    """Compute each node's 15-minute row of its newest minute before `start`; delete old rows.

    A 15-minute row is always computed from its one-minute rows, so a repeat changes nothing.
    """
    points = node_points.c
    of_nodes = points.node.in_(nodes)
    newest = (
        select(points.node, func.max(points.start))
        .where(of_nodes, points.seconds == MINUTE, points.start < start)
        .group_by(points.node)
    )
    # This is a single 15-minute period, unless some nodes were silent.
    of_quarter: dict[int, list[str]] = {}
    for node, last in connection.execute(newest):
        of_quarter.setdefault(last // QUARTER * QUARTER, []).append(node)
    for quarter, names in of_quarter.items():
        of_names = points.node.in_(names)
        within = (points.start >= quarter, points.start < quarter + QUARTER)
        minutes: dict[str, list[Mapping[str, Summary]]] = {}
        query = select(points.node, points.data).where(of_names, points.seconds == MINUTE, *within)
        for node, data in connection.execute(query):
            minutes.setdefault(node, []).append(data)
        former = (points.seconds == QUARTER, points.start == quarter)
        connection.execute(delete(node_points).where(of_names, *former))
        summed = {node: _merged(rows) for node, rows in minutes.items()}
        _put(connection, QUARTER, start=quarter, rows=summed)
    for seconds, kept in ((MINUTE, MINUTES_KEPT), (QUARTER, QUARTERS_KEPT)):
        old = (points.seconds == seconds, points.start <= start - kept * seconds)
        connection.execute(delete(node_points).where(of_nodes, *old))


def _merged(rows: Iterable[Mapping[str, Summary]]) -> dict[str, Summary]:
    """Merge each series over all rows; a series may be absent from some rows."""
    merged: dict[str, Summary] = {}
    for row in rows:
        for key, summary in row.items():
            merged[key] = _joined(merged[key], summary) if key in merged else summary
    return merged


def _joined(one: Summary, other: Summary) -> Summary:
    if len(one) == len(other) == 2 and one[1] == other[1]:
        return [one[0] + other[0], one[1]]
    low, total, high = one[1:] if len(one) > 2 else _constant(*one)
    its_low, its_total, its_high = other[1:] if len(other) > 2 else _constant(*other)
    return [one[0] + other[0], min(low, its_low), total + its_total, max(high, its_high)]


def _constant(count: float, value: float) -> Summary:
    """Return minimum, sum and maximum of a series with equal values."""
    return [value, count * value, value]


def _put(
    connection: Connection, seconds: int, *, start: int, rows: Mapping[str, Mapping[str, Summary]]
) -> None:
    key = {"seconds": seconds, "start": start}
    given = [{"node": node, **key, "data": data} for node, data in rows.items()]
    connection.execute(insert(node_points), given)


def _minute_of(now: datetime) -> int:
    return int(now.timestamp()) // MINUTE * MINUTE
