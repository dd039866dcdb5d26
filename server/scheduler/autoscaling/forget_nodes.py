"""Deletes the nodes of ended requests, and marks requests that the engine has forgotten."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, exists, func, or_, select, update

from server.cluster.nodes.series import QUARTER, QUARTERS_KEPT
from server.cluster.supply.changes import source_changed
from server.cluster.supply.rows import IS_OPEN, NodeRequest, lock_source
from server.core.context import Context
from server.core.database.metric_and_log_tables import node_points
from server.core.database.source_tables import node_requests
from server.core.database.tables import attempt_nodes, nodes
from server.core.subject import SCHEDULER
from trainyard.protocol.states import NodeRequestState

KEPT = timedelta(seconds=QUARTER * QUARTERS_KEPT)
"""Time from the end of a request to the deletion of its nodes' series. The series of all other
nodes are kept for the same time.
"""
FORGOTTEN_AT_ONCE = 200
LOST_AFTER = timedelta(days=1)
LOST = (
    "lost: the engine has not known it for a day. It counts against the limits until it is known "
    "again, or an admin ends it by name"
)


def forget_nodes(context: Context) -> int:
    """Delete the series of nodes whose requests ended long ago, and the rows of these nodes.

    The row of a node is kept while shares of attempts name the node.

    The requests of a deleted source are deleted too, so for their nodes the time counts from the
    last heartbeat.

    Returns:
        The number of nodes with a deleted series or row, at most 200.
    """
    request = node_requests.c
    has_points = exists().where(node_points.c.node == nodes.c.name)
    unnamed = ~exists().where(attempt_nodes.c.node == nodes.c.name)
    query = (
        select(nodes.c.name)
        .join(node_requests, request.id == nodes.c.request_id, isouter=True)
        .where(
            nodes.c.request_id.is_not(None),
            or_(request.id.is_(None), request.state == NodeRequestState.ENDED),
            func.coalesce(request.ended_at, nodes.c.heartbeat_at) < context.now() - KEPT,
            or_(has_points, unnamed),
        )
        .order_by(nodes.c.name)
        .limit(FORGOTTEN_AT_ONCE)
    )
    with context.database.write() as connection:
        names = connection.scalars(query.with_for_update(of=nodes)).all()
        if names:
            connection.execute(delete(node_points).where(node_points.c.node.in_(names)))
            connection.execute(delete(nodes).where(nodes.c.name.in_(names), unnamed))
    return len(names)


def note_lost(context: Context) -> int:
    """Mark requests as lost if the engine has not known them for a day; return their number.

    Each mark appends an event. The mark is removed when the engine lists the request again.
    """
    since = context.now() - LOST_AFTER
    is_lost = IS_OPEN & (node_requests.c.unknown_since <= since)
    new = is_lost & or_(node_requests.c.explanation.is_(None), node_requests.c.explanation != LOST)
    with context.database.read() as connection:
        found = NodeRequest.all(connection, NodeRequest.select().where(new))
    for request in found:
        with context.database.write() as connection:
            lock_source(connection, request.source)
            shown = update(node_requests).where(node_requests.c.id == request.id, new)
            if connection.execute(shown.values(explanation=LOST)).rowcount:
                what = f"request {request.id} of {request.source} is {LOST}"
                name = request.source
                source_changed(context, connection, name=name, message=what, actor=SCHEDULER)
    return len(found)
