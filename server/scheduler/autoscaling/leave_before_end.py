"""Empties nodes before their allocation ends; their attempts save and continue elsewhere."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import or_, select, update

from server.cluster.supply.changes import drain_nodes, leave
from server.cluster.supply.rows import lock_source, open_requests
from server.core.context import Context
from server.core.database.source_tables import node_requests, sources
from server.core.database.tables import nodes
from server.core.isolation import Isolation
from server.core.subject import SCHEDULER
from trainyard.protocol.node_sources.messages import USEFUL_SECONDS
from trainyard.protocol.rest.nodes import Drain

USEFUL = timedelta(seconds=USEFUL_SECONDS)
ENDS_AT = "its allocation ends at"


class LeaveKeeper:
    """Empties the nodes of allocations that end soon (docs/sources.md, 9)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._isolation = Isolation(context.clock.monotonic)

    def run(self) -> int:
        """Run one round; return the number of requests with newly drained nodes."""
        now = self._context.now()
        node, request = nodes.c, node_requests.c
        query = (
            select(request.source, request.id, node.ends_at, node.drain, sources.c.leave_seconds)
            .join(node_requests, request.id == node.request_id)
            .join(sources, sources.c.name == request.source)
            .where(or_(node.ends_at.is_not(None), node.drain.is_not(None)))
            .where(node.offline_since.is_(None))
        )
        with self._context.database.read() as connection:
            rows = connection.execute(query).all()
        # Grouped by request, because the nodes of one allocation end together.
        full: dict[tuple[str, str], datetime] = {}
        going: dict[tuple[str, str], datetime] = {}
        back: dict[tuple[str, str], None] = {}
        for row in rows:
            key, leave_time = (row.source, row.id), timedelta(seconds=row.leave_seconds)
            # The remaining time until attempts must leave.
            left = timedelta.max if row.ends_at is None else row.ends_at - now - leave_time
            if left <= timedelta():
                if row.drain is None or row.drain.running != "move":
                    going[key] = row.ends_at
            elif left <= USEFUL and row.drain is None:
                full[key] = row.ends_at
            elif left > USEFUL and takes_nothing_new(row.drain):
                back[key] = None
        left_out = self._isolation.left_out()
        for key, ends_at in {**back, **full, **going}.items():
            source, request_id = key
            if request_id not in left_out:
                with self._isolation.turn(request_id, f"request {request_id}"):
                    if ends_at is None:
                        self._take_back(source, request_id)
                    else:
                        self._leave(source, request_id, ends_at, moves=key in going)
        return len(full | going)

    def _take_back(self, source: str, request_id: str) -> None:
        """Accept attempts on a request's nodes again, because the request's end was postponed."""
        context = self._context
        with context.database.write() as connection:
            lock_source(connection, source)
            open_now = open_requests(connection, source)
            if not any(each.id == request_id and each.cancel_at is None for each in open_now):
                return
            of_request = nodes.c.request_id == request_id
            # Every statement that locks several nodes locks them by name, so that no two deadlock.
            locked = select(nodes.c.name, nodes.c.drain).where(of_request).order_by(nodes.c.name)
            rows = connection.execute(locked.with_for_update(key_share=True)).all()
            names = [row.name for row in rows if takes_nothing_new(row.drain)]
            free = update(nodes).where(nodes.c.name.in_(names))
            connection.execute(free.values(drain=None))

    def _leave(self, source: str, request_id: str, ends_at: datetime, *, moves: bool) -> None:
        context = self._context
        reason = f"{ENDS_AT} {ends_at:%H:%M} UTC"
        with context.database.write() as connection:
            lock_source(connection, source)
            rows = [r for r in open_requests(connection, source) if r.id == request_id]
            if moves:
                leave(context, connection, rows, reason, actor=SCHEDULER)
            drain_nodes(
                context,
                connection,
                requests=[row.id for row in rows],
                reason=reason,
                actor=SCHEDULER,
                running="move" if moves else "finish",
            )


def takes_nothing_new(drain: Drain | None) -> bool:
    """Return whether a node keeps its work, but takes no new work, as its allocation ends soon."""
    if drain is None or (drain.running, drain.by) != ("finish", SCHEDULER.name):
        return False
    return any(reason.startswith(ENDS_AT) for reason in drain.reasons)
