"""Nodes whose pilot is proved gone, and the shares on these nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection, select, update

from server.api.auth.tokens import TokenKind
from server.core.context import Context
from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.source_tables import node_requests, pilots
from server.core.database.tables import attempt_nodes, nodes, tokens
from server.core.events.store import NewEvent, append_events
from server.core.subject import SERVER, Subject
from trainyard.protocol.node_sources.messages import pilot_name
from trainyard.protocol.rest.nodes import NodeOffline

HeldShare = tuple[str, str]
"""Id of an attempt, and name of one of its nodes."""
EndShares = Callable[[Context, Sequence[HeldShare]], None]
"""Function that ends shares whose processes are gone; a higher part of the server defines it."""


def forget_worker(
    context: Context, connection: Connection, names: Collection[str], *, reason: str
) -> None:
    """Mark the named nodes as offline, because their pilots have ended; revoke the nodes' tokens.

    After the revocation, a successor with the same name can join.
    """
    if not names:
        return
    now = context.now()
    is_one = nodes.c.name.in_(names)
    off = update(nodes).where(is_one, nodes.c.offline_since.is_(None)).values(offline_since=now)
    went = [
        NewEvent(NodeOffline(), SERVER, Subject(node=name), f"{name} is offline: {reason}")
        for name in sorted(connection.scalars(off.returning(nodes.c.name)))
    ]
    connection.execute(update(nodes).where(is_one).values(worker=None, notice=None))
    of_nodes = (tokens.c.node.in_(names)) & (tokens.c.kind == TokenKind.NODE)
    connection.execute(
        update(tokens).where(of_nodes, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    if went:
        append_events(context, connection, went)


def shares_on(connection: Connection, names: Collection[str]) -> Sequence[HeldShare]:
    """Return the shares that hold slots on the given nodes.

    Call this function in the transaction that stores the proof of the pilots' end, because
    afterwards a successor with the same name may hold live shares.
    """
    if not names:
        return []
    share = attempt_nodes.c
    held = select(share.attempt_id, share.node).where(share.node.in_(names), HOLDS_SLOTS)
    rows = connection.execute(held.order_by(share.node, share.attempt_id))
    return [(row.attempt_id, row.node) for row in rows]


def shares_without_pilot(connection: Connection, source: str) -> Sequence[HeldShare]:
    """Return the shares on those nodes of a source whose pilot is proved gone.

    Such shares exist if the server died after it stored the proof and before it ended the shares.
    """
    live = (
        select(attempt_nodes.c.node, nodes.c.request_id)
        .distinct()
        .join(nodes, nodes.c.name == attempt_nodes.c.node)
        .join(node_requests, node_requests.c.id == nodes.c.request_id)
        .where(HOLDS_SLOTS, node_requests.c.source == source)
    )
    found = {row.node: row.request_id for row in connection.execute(live)}
    if not found:
        return []
    gone = select(pilots.c.request_id, pilots.c.number).where(
        pilots.c.request_id.in_(set(found.values())), pilots.c.gone_at.is_not(None)
    )
    names = {pilot_name(source, row.request_id, row.number) for row in connection.execute(gone)}
    return shares_on(connection, names & found.keys())
