"""Use of sources: pending requests, running nodes, node-hours of the month, waiting times."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from sqlalchemy import Connection, Table, case, extract, func, literal, select

from server.cluster.supply.rows import IS_OPEN, NodeRequest
from server.core.database.column_types import UtcDateTime
from server.core.database.rows import TypedRow
from server.core.database.source_tables import node_requests
from trainyard.protocol.node_sources.messages import SourceLimits
from trainyard.protocol.states import NodeRequestState

HOUR = 3600.0
WAITS = 5
"""A source's mean waiting time covers its most recently started requests, at most this number."""
MEASURED = timedelta(days=1)
"""Maximum age of a start that counts for the mean waiting time."""


@dataclass(frozen=True)
class Left:
    """Remaining use that the limits of a source allow."""

    requests: int
    nodes: int
    node_hours: float | None
    """Remaining node-hours of the month; None if unlimited."""


@dataclass
class Use:
    """Use of one source."""

    pending: int = 0
    """Number of requests queued in the engine or not yet submitted."""
    asked: int = 0
    """Number of nodes in pending requests."""
    running: int = 0
    """Number of nodes in requests that run or have no proved end."""
    hours: float = 0.0
    """Node-hours used so far in the calendar month."""
    committed: float = 0.0
    """Node-hours used in the month, plus the node-hours expected until the ends of open
    requests."""

    def left(self, limits: SourceLimits) -> Left:
        """Return the remaining use that the limits allow."""
        hours = limits.node_hours_per_month
        return Left(
            requests=limits.pending - self.pending,
            nodes=limits.nodes - self.asked - self.running,
            node_hours=None if hours is None else hours - self.committed,
        )


@dataclass(frozen=True, slots=True)
class _Open(TypedRow):
    """A request for nodes that has not ended."""

    table: ClassVar[Table] = node_requests
    source: str
    state: NodeRequestState
    nodes: int
    seconds: float | None
    started_at: datetime | None
    ends_at: datetime | None


def read_use(connection: Connection, names: Collection[str], now: datetime) -> Mapping[str, Use]:
    """Return the use of each source, by name; the database computes the sum over ended requests."""
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    found = {name: Use() for name in names}
    row = node_requests.c
    opened = _Open.select().where(row.source.in_(names), IS_OPEN)
    for each in _Open.all(connection, opened):
        _add(found[each.source], each, month=month, now=now)
    began = case((row.started_at > month, row.started_at), else_=literal(month, UtcDateTime()))
    seconds = row.nodes * (extract("epoch", row.ended_at) - extract("epoch", began))
    ended = (
        select(row.source, func.sum(seconds))
        .where(row.source.in_(names), row.ended_at > month, row.ended_at > row.started_at)
        .group_by(row.source)
    )
    for source, spent in connection.execute(ended):
        found[source].hours += float(spent) / HOUR
        found[source].committed += float(spent) / HOUR
    return found


def _add(use: Use, row: _Open, *, month: datetime, now: datetime) -> None:
    if row.state in (NodeRequestState.WANTED, NodeRequestState.PENDING):
        use.pending += 1
        use.asked += row.nodes
    else:
        use.running += row.nodes
    spent = ahead = 0.0
    if row.started_at is None:
        ahead = row.seconds or 0.0
    else:
        spent = max((now - max(row.started_at, month)).total_seconds(), 0.0)
        if row.ends_at is not None:
            ahead = max((row.ends_at - now).total_seconds(), 0.0)
    use.hours += row.nodes * spent / HOUR
    use.committed += row.nodes * (spent + ahead) / HOUR


def read_waits(
    connection: Connection, open_now: Sequence[NodeRequest], now: datetime
) -> Mapping[str, float]:
    """Return the mean waiting time of recently started requests by source, in seconds.

    If an open request has already waited longer, its waiting time is returned instead.
    """
    row = node_requests.c
    place = func.row_number().over(partition_by=row.source, order_by=row.started_at.desc())
    started = (
        select(row.source, row.created_at, row.started_at, place.label("place"))
        .where(row.started_at > now - MEASURED)
        .subquery()
    )
    newest = select(started).where(started.c.place <= WAITS)
    times: dict[str, list[float]] = {}
    for source, created_at, started_at, _ in connection.execute(newest):
        times.setdefault(source, []).append((started_at - created_at).total_seconds())
    waits = {source: sum(each) / len(each) for source, each in times.items()}
    for each in open_now:
        if each.started_at is None:
            waited = (now - each.created_at).total_seconds()
            waits[each.source] = max(waits.get(each.source, 0.0), waited)
    return waits
