"""Nodes whose pilot is gone by the word of the engine: their shares end at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import Connection, select, update

from server.api.auth.tokens import TokenKind
from server.core.context import Context
from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.source_tables import node_requests, pilots
from server.core.database.tables import attempt_nodes, nodes, tokens
from server.core.errors import NotFoundError
from server.core.events.store import NewEvent, append_events
from server.core.isolation import Isolation
from server.core.lifecycle import lock_job_of
from server.core.subject import SERVER, Subject
from server.jobs.attempts.finish import end_nodes
from server.jobs.attempts.launch import read_launch
from server.jobs.attempts.retry_policy import NodeEnd
from trainyard.protocol.node_sources.messages import pilot_name
from trainyard.protocol.rest.nodes import NodeOffline
from trainyard.protocol.states import AttemptNodeState, AttemptOutcome
from trainyard.run.failures import Failure, FailureReason

NEXT_LISTING = timedelta(seconds=60)
"""Time until a listing of the source tries again what failed."""


def forget_worker(
    context: Context, connection: Connection, names: Collection[str], *, reason: str
) -> None:
    """Take nodes offline whose pilot ended, and revoke its tokens; a successor may join."""
    if not names:
        return
    now = context.now()
    is_one = nodes.c.name.in_(names)
    online = connection.scalars(select(nodes.c.name).where(is_one, nodes.c.offline_since.is_(None)))
    went = [
        NewEvent(NodeOffline(), SERVER, Subject(node=name), f"{name} is offline: {reason}")
        for name in online.all()
    ]
    off = update(nodes).where(is_one, nodes.c.offline_since.is_(None))
    connection.execute(off.values(offline_since=now))
    connection.execute(update(nodes).where(is_one).values(worker=None, notice=None))
    of_nodes = (tokens.c.node.in_(names)) & (tokens.c.kind == TokenKind.NODE)
    connection.execute(
        update(tokens).where(of_nodes, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    if went:
        append_events(context, connection, went)


HeldShare = tuple[str, str]
"""An attempt and a node of it."""


def shares_on(connection: Connection, names: Collection[str]) -> Sequence[HeldShare]:
    """Return the shares that hold slots of nodes.

    Call it in the transaction that proves their pilots gone: what a successor of the same name
    holds afterwards lives.
    """
    if not names:
        return []
    share = attempt_nodes.c
    held = select(share.attempt_id, share.node).where(share.node.in_(names), HOLDS_SLOTS)
    rows = connection.execute(held.order_by(share.node, share.attempt_id))
    return [(row.attempt_id, row.node) for row in rows]


def shares_without_pilot(connection: Connection, source: str) -> Sequence[HeldShare]:
    """Return the shares that hold slots of a source although their node's pilot is proved gone.

    The proof is stored before the shares end. A server that dies in between leaves them to this.
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


def end_shares(context: Context, shares: Sequence[HeldShare]) -> None:
    """End shares whose processes are gone, as `node_lost`; those that ended change nothing.

    An error of one attempt is logged and keeps no other: `shares_without_pilot` finds it again.
    """
    isolation = Isolation(context.clock.monotonic, pause=NEXT_LISTING)
    for attempt_id, node in shares:
        turn = isolation.turn(attempt_id, f"attempt {attempt_id}")
        with turn, context.database.write() as connection:
            _end_share(context, connection, attempt_id, node)


def _end_share(context: Context, connection: Connection, attempt_id: str, node: str) -> None:
    try:
        lock_job_of(connection, attempt_id)
    except NotFoundError:
        return
    share = next((n for n in read_launch(connection, attempt_id).nodes if n.node == node), None)
    ends = (AttemptNodeState.ENDED, AttemptNodeState.SPARE)  # a spare has no process to end
    if share is None or share.state in ends:
        return
    failure = Failure(
        reason=FailureReason.NODE_LOST,
        message=f"the allocation of {node} ended, by the word of its engine",
        node=node,
    )
    end = NodeEnd(node, AttemptOutcome.FAILED, failure)
    end_nodes(context, connection, attempt_id, [end], actor=SERVER)
