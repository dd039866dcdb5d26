"""Records the capacity of nodes: one row for each change that the scheduler notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar

from sqlalchemy import Connection, Table, func, insert, or_, select

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.slot_tables import capacity_changes
from server.core.database.tables import nodes
from server.telemetry.goodput.queries import MILLISECOND, milliseconds
from server.telemetry.goodput.slot_time import CapacityChange
from trainyard.protocol.goodput import TimeCategory

AFTER_ALL = datetime.max.replace(tzinfo=UTC)
"""A time after all changes."""


@dataclass(frozen=True, slots=True)
class _Change(TypedRow):
    table: ClassVar[Table] = capacity_changes
    node: str
    since: datetime
    slots: int
    online: bool
    takes_jobs: bool
    withheld: int

    @property
    def capacity(self) -> CapacityChange:
        use = TimeCategory.IDLE if self.takes_jobs else TimeCategory.DRAINED
        use = use if self.online else TimeCategory.OFFLINE
        return CapacityChange(self.node, milliseconds(self.since), self.slots, use, self.withheld)


class CapacityKeeper:
    """Records changes to the capacity of nodes during one scheduler epoch."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[str, _Change] | None = None

    def run(self) -> None:
        """Store the changes since the last run; the first change of a node is its registration."""
        now, node = self._context.now(), nodes.c
        query = select(
            *(node.name, node.registered_at, node.slots, node.withheld),
            *(node.offline_since.is_(None), node.drain.is_(None) & node.notice.is_(None)),
        )
        with self._context.database.read() as connection:
            if (known := self._known) is None:
                last_changes = _changes(connection, since=AFTER_ALL, until=AFTER_ALL)
                known = {change.node: change for change in last_changes}
            rows = connection.execute(query).all()
        changed = []
        for name, registered_at, slots, withheld, online, takes_jobs in rows:
            last = known.get(name)
            # A change comes after the previous change even if the clock was set back in between.
            since = registered_at if last is None else max(now, last.since + MILLISECOND)
            change = _Change(name, since, slots, online, takes_jobs, len(withheld))
            if last is None or change != replace(last, since=since):
                changed.append(change)
        if changed:
            with self._context.database.write() as connection:
                connection.execute(insert(capacity_changes), [asdict(change) for change in changed])
        self._known = known | {change.node: change for change in changed}


def read_capacity(
    connection: Connection, *, since: datetime, until: datetime
) -> list[CapacityChange]:
    """Return the changes from `since` to `until`, and each node's last change before `since`."""
    return [row.capacity for row in _changes(connection, since=since, until=until)]


def _changes(connection: Connection, *, since: datetime, until: datetime) -> Sequence[_Change]:
    change = capacity_changes.c
    before = (
        select(change.node, func.max(change.since).label("since"))
        .where(change.since <= since)
        .group_by(change.node)
        .subquery()
    )
    query = (
        _Change.select()
        .outerjoin(before, before.c.node == change.node)
        .where(change.since < until, or_(before.c.since.is_(None), change.since >= before.c.since))
    )
    return _Change.all(connection, query)
