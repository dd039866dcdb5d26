"""Records the capacity of nodes: one row for each change that the scheduler notices."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import ClassVar

from sqlalchemy import Connection, Table, and_, func, insert, or_, select

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.slot_tables import capacity_changes
from server.core.database.tables import nodes
from server.telemetry.goodput.queries import MILLISECOND, milliseconds
from server.telemetry.goodput.slot_time import CapacityChange
from trainyard.protocol.goodput import TimeCategory


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
    def offer(self) -> tuple[int, bool, bool, int]:
        """The node's capacity since the change, for comparison with the next change."""
        return self.slots, self.online, self.takes_jobs, self.withheld

    @property
    def capacity(self) -> CapacityChange:
        """The change as the argument of the functions in `slot_time`."""
        use = TimeCategory.IDLE if self.takes_jobs else TimeCategory.DRAINED
        return CapacityChange(
            self.node,
            milliseconds(self.since),
            self.slots,
            use if self.online else TimeCategory.OFFLINE,
            self.withheld,
        )


class CapacityKeeper:
    """Records changes to the capacity of nodes during one scheduler epoch."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[str, _Change] | None = None

    def run(self) -> None:
        """Store the changes since the last run; the first change of a node is its registration."""
        now = self._context.now()
        with self._context.database.read() as connection:
            known = _newest(connection) if self._known is None else self._known
            node = nodes.c
            rows = connection.execute(
                select(
                    node.name,
                    node.registered_at,
                    node.slots,
                    node.offline_since.is_(None).label("online"),
                    and_(node.drain.is_(None), node.notice.is_(None)).label("takes_jobs"),
                    node.withheld,
                )
            ).all()
        changed = []
        for row in rows:
            last = known.get(row.name)
            # A change comes after the previous change even if the clock was set back in between.
            since = row.registered_at if last is None else max(now, last.since + MILLISECOND)
            change = _Change(
                row.name,
                since,
                row.slots,
                bool(row.online),
                bool(row.takes_jobs),
                len(row.withheld),
            )
            if last is None or change.offer != last.offer:
                changed.append(change)
        if changed:
            with self._context.database.write() as connection:
                connection.execute(insert(capacity_changes), [asdict(change) for change in changed])
        self._known = known | {change.node: change for change in changed}


def read_capacity(
    connection: Connection, *, since: datetime, until: datetime
) -> list[CapacityChange]:
    """Return the changes between two times, and each node's last change before the first time."""
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
    return [row.capacity for row in _Change.all(connection, query)]


def _newest(connection: Connection) -> dict[str, _Change]:
    change = capacity_changes.c
    last = (
        select(change.node, func.max(change.since).label("since")).group_by(change.node).subquery()
    )
    query = _Change.select().join(
        last, and_(last.c.node == change.node, last.c.since == change.since)
    )
    return {row.node: row for row in _Change.all(connection, query)}
