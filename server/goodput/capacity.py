"""The record of what nodes offer: a row for each change, as the scheduler notices it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from sqlalchemy import Connection, Table, and_, func, insert, or_, select

from server.context import Context
from server.database.rows import TypedRow
from server.database.slot_tables import capacity_changes
from server.database.tables import nodes
from server.goodput.queries import milliseconds
from server.goodput.slot_time import CapacityChange
from trainyard.protocol.goodput import SlotCategory

LOOK_PAUSE = timedelta(seconds=5)
"""Pause between two looks at the nodes: a shorter absence is not recorded."""


@dataclass(frozen=True, slots=True)
class _Change(TypedRow):
    table: ClassVar[Table] = capacity_changes
    node: str
    since: datetime
    slots: int
    online: bool
    takes_jobs: bool

    @property
    def capacity(self) -> CapacityChange:
        """The change as the slot-time counts it."""
        use = SlotCategory.IDLE if self.takes_jobs else SlotCategory.WITHHELD
        return CapacityChange(
            self.node,
            milliseconds(self.since),
            self.slots,
            use if self.online else SlotCategory.OFFLINE,
        )


class CapacityKeeper:
    """Records the changes of a scheduler's epoch."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._looked_at: datetime | None = None
        self._known: dict[str, tuple[int, bool, bool]] | None = None

    def run(self) -> None:
        """Store what changed since the last look; a new node counts from its registration on."""
        now = self._context.now()
        if self._looked_at is not None and now - self._looked_at < LOOK_PAUSE:
            return
        with self._context.database.read() as connection:
            if self._known is None:
                self._known = _newest(connection)
            node = nodes.c
            rows = connection.execute(
                select(
                    node.name,
                    node.registered_at,
                    node.slots,
                    node.offline_since.is_(None).label("online"),
                    and_(node.drain.is_(None), node.notice.is_(None)).label("takes_jobs"),
                )
            ).all()
        present = {row.name: (row.slots, bool(row.online), bool(row.takes_jobs)) for row in rows}
        changed = [row for row in rows if self._known.get(row.name) != present[row.name]]
        if changed:
            with self._context.database.write() as connection:
                connection.execute(
                    insert(capacity_changes),
                    [
                        {
                            "node": row.name,
                            "since": now if row.name in self._known else row.registered_at,
                            "slots": row.slots,
                            "online": bool(row.online),
                            "takes_jobs": bool(row.takes_jobs),
                        }
                        for row in changed
                    ],
                )
        self._known, self._looked_at = present, now


def read_capacity(
    connection: Connection, *, since: datetime, until: datetime
) -> list[CapacityChange]:
    """Return the changes between two times, and of each node the last one before."""
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


def _newest(connection: Connection) -> dict[str, tuple[int, bool, bool]]:
    change = capacity_changes.c
    last = (
        select(change.node, func.max(change.since).label("since")).group_by(change.node).subquery()
    )
    query = _Change.select().join(
        last, and_(last.c.node == change.node, last.c.since == change.since)
    )
    return {
        row.node: (row.slots, row.online, row.takes_jobs) for row in _Change.all(connection, query)
    }
