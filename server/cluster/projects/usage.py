"""Slot-hours: the slot time that a project's jobs use in each calendar month (UTC).

A share uses its slots from the placement of its attempt, or from its reservation as a spare, to the
end of the share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, insert, select

from server.core.context import Context
from server.core.database.held import HELD_SINCE
from server.core.database.scheduler_tables import project_usage
from server.core.database.slot_tables import HOLDS_SLOTS, holdings
from server.core.database.tables import attempt_nodes, attempts, jobs
from server.core.database.upsert import insert_or_add

ReadUsage = Callable[[Connection, datetime, Collection[str]], Mapping[str, float]]
"""Function that returns the slot-hours of this month for some projects, such as `read_usage`."""
SECONDS_PER_HOUR = 3600
USAGE_KEPT = timedelta(seconds=5)
"""Time for which the scheduler reuses computed slot-hours; a computation reads all live shares."""


@dataclass(frozen=True)
class EndedShare:
    """A share that has ended: a row of `holdings`, from placement or reservation to the end."""

    attempt_id: str
    node: str
    job_id: str
    job_name: str
    project: str
    attempt: int
    """Number of the attempt."""
    slots: int
    """Number of slots of the share."""
    since: datetime
    until: datetime
    """End of the share; never before `since`."""
    spare: bool = False
    """Whether the share was on a spare node, and so had no ranks."""


def month_of(time: datetime) -> str:
    """Return the calendar month of a time in UTC, such as `2026-11`."""
    return f"{time.astimezone(UTC):%Y-%m}"


def split_by_month(since: datetime, until: datetime) -> Iterator[tuple[str, float]]:
    """Yield each calendar month (UTC) of a period, and the period's seconds in that month.

    A period that ends before it starts, because the clocks of two servers differ, has no months.
    """
    at, end = since.astimezone(UTC), until.astimezone(UTC)
    while at < end:
        first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = divmod(first.year * 12 + first.month, 12)
        next_month = first.replace(year=year, month=month + 1)
        yield month_of(at), (min(end, next_month) - at).total_seconds()
        at = next_month


def settle_share(context: Context, connection: Connection, share: EndedShare) -> None:
    """Store an ended share, and add its slot time to the use of its project.

    The function first takes the lock for events. So if two shares of a project end at the same
    time, their transactions cannot deadlock on the row of the month.
    """
    context.database.lock_events(connection)
    connection.execute(insert(holdings).values(asdict(share)))
    rows = [
        {"project": share.project, "month": month, "slot_seconds": share.slots * seconds}
        for month, seconds in split_by_month(share.since, share.until)
    ]
    insert_or_add(connection, project_usage, rows)


def read_usage(
    connection: Connection, now: datetime, names: Collection[str]
) -> Mapping[str, float]:
    """Return this month's slot-hours by project, for the named projects, including live shares.

    Projects without slot-hours are omitted.
    """
    month, of_month = month_of(now), project_usage.c
    settled = select(of_month.project, of_month.slot_seconds).where(
        of_month.month == month, of_month.project.in_(names)
    )
    live = (
        select(jobs.c.project, HELD_SINCE, attempt_nodes.c.slots)
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(HOLDS_SLOTS, jobs.c.project.in_(names))
    )
    used: defaultdict[str, float] = defaultdict(float)
    for project, slot_seconds in connection.execute(settled):
        used[project] += slot_seconds
    for project, since, slots in connection.execute(live):
        used[project] += len(slots) * dict(split_by_month(since, now)).get(month, 0.0)
    return {project: seconds / SECONDS_PER_HOUR for project, seconds in used.items()}


class RecentUsage:
    """Cache for slot-hours of projects, at most `USAGE_KEPT` old."""

    def __init__(self) -> None:
        self._key: tuple[str, frozenset[str]] | None = None
        self._read_at = datetime.min.replace(tzinfo=UTC)
        self._used: Mapping[str, float] = {}

    def read(
        self, connection: Connection, now: datetime, names: Collection[str]
    ) -> Mapping[str, float]:
        """Return the slot-hours of this month for the named projects."""
        key = month_of(now), frozenset(names)
        if key != self._key or not timedelta() <= now - self._read_at < USAGE_KEPT:
            self._used = read_usage(connection, now, names)
            self._key, self._read_at = key, now
        return self._used
