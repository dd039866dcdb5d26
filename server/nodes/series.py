"""Node series: the samples of heartbeats, as curves over time with a bounded number of rows.

A row holds all series of a node over one minute, or over a quarter of an hour: count, minimum, sum
and maximum of each, so that a peak stays visible. Times are those of the server: the clock of a
node moves no point. A node has at most `MINUTES_KEPT + QUARTERS_KEPT` rows, about 3 KB each with
eight GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from server.context import Context
from server.database.metric_and_log_tables import node_points
from server.database.rows import Node
from server.database.tables import nodes
from server.errors import NotFoundError
from trainyard.protocol.node_samples import AcceleratorSample, NodeSample
from trainyard.protocol.rest.nodes import NodeCurve, NodeMetrics, NodePoint
from trainyard.protocol.worker_messages import Hardware

MINUTE, QUARTER = 60, 900
"""Seconds of a row."""
MINUTES_KEPT = 360
"""Rows of a minute that a node keeps: six hours."""
QUARTERS_KEPT = 1344
"""Rows of a quarter of an hour that a node keeps: fourteen days."""

Summary = list[float]
"""Count, minimum, sum and maximum of a series; count and value alone while it is constant."""


def device_values(sample: AcceleratorSample) -> Iterator[tuple[str, float]]:
    """Return the numbers of a device's sample, by names that end in their unit."""
    for name, value in sample:
        if isinstance(value, int | float):
            yield f"gpu_{name}", float(value)
    if sample.throttle_reasons is not None:
        yield "gpu_throttled", float(bool(sample.throttle_reasons))


def host_values(sample: NodeSample) -> Iterator[tuple[str, str, float]]:
    """Return the numbers of a host: name, disk or nothing, value."""
    host = sample.host
    yield "load", "", host.load
    yield "memory_bytes", "", host.memory_bytes
    yield "memory_used_bytes", "", host.memory_used_bytes
    for disk in host.disks:
        yield "disk_bytes", disk.name, disk.total_bytes
        yield "disk_free_bytes", disk.name, disk.free_bytes


def store_sample(connection: Connection, node: str, sample: NodeSample, *, now: datetime) -> None:
    """Add a sample to the series of a node.

    Args:
        connection: a transaction that holds the node's row, so that none is added twice.
        node: its name.
        sample: what its heartbeat carries.
        now: the time of the server.
    """
    start = _start(now, MINUTE)
    row = _row(node, MINUTE, start)
    before = connection.scalar(select(node_points.c.data).where(*row))
    values = {f"{name}/{part}": [1, value] for name, part, value in _values(sample)}
    data = _merged([before or {}, values])
    if before is not None:
        connection.execute(update(node_points).where(*row).values(data=data))
        return
    _put(connection, node, MINUTE, start, data)
    _sum_up(connection, node, start)


def read_metrics(context: Context, name: str, *, hours: int) -> NodeMetrics:
    """Return the newest sample of a node and its curves over the last hours.

    Raises:
        NotFoundError: no node has this name.
    """
    seconds = MINUTE if hours * 3600 <= MINUTES_KEPT * MINUTE else QUARTER
    since = _start(context.now(), MINUTE) - hours * 3600
    points = node_points.c
    query = (
        select(points.start, points.data)
        .where(points.node == name, points.seconds == seconds, points.start >= since)
        .order_by(points.start)
    )
    with context.database.read() as connection:
        node = Node.one_or_none(connection, Node.select().where(nodes.c.name == name))
        if node is None:
            raise NotFoundError(f"no node has the name {name!r}")
        rows = connection.execute(query).all()
    curves: dict[str, list[NodePoint]] = {}
    for start, data in rows:
        at = datetime.fromtimestamp(start, UTC)
        for key, (count, *numbers) in data.items():
            low, total, high = numbers if len(numbers) > 1 else _constant(count, numbers[0])
            point = NodePoint(time=at, min=low, mean=total / count, max=high)
            curves.setdefault(key, []).append(point)
    return NodeMetrics(
        name=name,
        sampled_at=None if node.sample is None else node.heartbeat_at,
        sample=node.sample,
        seconds=seconds,
        curves=tuple(_curve(node.hardware, key, points) for key, points in sorted(curves.items())),
    )


def _curve(hardware: Hardware, key: str, points: list[NodePoint]) -> NodeCurve:
    name, _, part = key.partition("/")
    slots = {device.uuid: slot for slot, device in enumerate(hardware.accelerators)}
    return NodeCurve(name=name, part=part or None, slot=slots.get(part), points=tuple(points))


def _values(sample: NodeSample) -> Iterator[tuple[str, str, float]]:
    yield from host_values(sample)
    for device in sample.accelerators:
        for name, value in device_values(device):
            yield name, device.uuid, value


def _sum_up(connection: Connection, node: str, start: int) -> None:
    """Sum up the quarter of an hour before a new minute, and drop the rows that are too old.

    The quarter is summed up from its minutes each time, so that doing it again changes nothing.
    """
    points = node_points.c
    of_node = (points.node == node, points.seconds == MINUTE)
    last = connection.scalar(
        select(points.start)
        .where(*of_node, points.start < start)
        .order_by(points.start.desc())
        .limit(1)
    )
    if last is not None:
        quarter = last // QUARTER * QUARTER
        within = (points.start >= quarter, points.start < quarter + QUARTER)
        minutes = connection.scalars(select(points.data).where(*of_node, *within)).all()
        connection.execute(delete(node_points).where(*_row(node, QUARTER, quarter)))
        _put(connection, node, QUARTER, quarter, _merged(minutes))
    for seconds, kept in ((MINUTE, MINUTES_KEPT), (QUARTER, QUARTERS_KEPT)):
        old = (points.seconds == seconds, points.start <= start - kept * seconds)
        connection.execute(delete(node_points).where(points.node == node, *old))


def _merged(rows: Iterable[Mapping[str, Summary]]) -> dict[str, Summary]:
    """Return each series over all rows; a series may be absent from some of them."""
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
    """Return minimum, sum and maximum of a series that was constant."""
    return [value, count * value, value]


def _put(
    connection: Connection, node: str, seconds: int, start: int, data: Mapping[str, Summary]
) -> None:
    row = {"node": node, "seconds": seconds, "start": start, "data": data}
    connection.execute(insert(node_points).values(row))


def _row(node: str, seconds: int, start: int) -> tuple[ColumnElement[bool], ...]:
    points = node_points.c
    return (points.node == node, points.seconds == seconds, points.start == start)


def _start(now: datetime, seconds: int) -> int:
    return int(now.timestamp()) // seconds * seconds
