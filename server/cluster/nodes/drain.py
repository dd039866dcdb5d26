"""Draining and cordons: a node gets no new work, and its running attempts move or finish.

A cordon is a drain that lets attempts finish, with reasons (docs/lifecycle-placing.md, 42).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, exists, select, update

from server.cluster.nodes.queries import node_view
from server.core.context import Context
from server.core.database.tables import nodes
from server.core.errors import NotFoundError
from server.core.events.store import NewEvent, append_event
from server.core.subject import SERVER, Actor, Subject
from trainyard.protocol.rest.nodes import Drain, NodeDrained, NodeView, Running


def set_drain(
    context: Context,
    name: str,
    running: Running | None,
    *,
    actor: Actor,
    reasons: Sequence[str] = (),
) -> NodeView:
    """Drain a node, or end its drain; an order that is already in effect changes nothing.

    Args:
        context: the server's context.
        name: name of the node.
        running: whether the scheduler moves running attempts or lets them finish. None ends the
            drain, and earlier faults then no longer count against the node.
        actor: who orders the drain or its end.
        reasons: texts with the reasons for the drain.

    Raises:
        NotFoundError: no node has this name.
    """
    with context.database.write() as connection:
        found = select(nodes.c.drain).where(nodes.c.name == name)
        row = connection.execute(found.with_for_update(key_share=True)).one_or_none()
        if row is None:
            raise NotFoundError(f"no node has the name {name!r}")
        before: Drain | None = row.drain
        same = before is not None and (before.running, before.reasons) == (running, (*reasons,))
        if not same and (before, running) != (None, None):
            _order(context, connection, name=name, running=running, actor=actor, reasons=reasons)
        return node_view(context, connection, name)


def cordon_by_server(
    context: Context, connection: Connection, *, name: str, reasons: Sequence[str]
) -> None:
    """Cordon a node unless it is already drained.

    Args:
        context: the server's context.
        connection: a transaction that holds the node's row.
        name: name of the node.
        reasons: texts that explain why the node is unreliable.
    """
    undrained = select(nodes.c.name).where(nodes.c.name == name, nodes.c.drain.is_(None))
    if connection.scalar(select(exists(undrained))):
        _order(context, connection, name=name, running="finish", actor=SERVER, reasons=reasons)


def _order(
    context: Context,
    connection: Connection,
    *,
    name: str,
    running: Running | None,
    actor: Actor,
    reasons: Sequence[str],
) -> None:
    now, why = context.now(), tuple(reasons)
    if running is None:
        values: dict[str, object] = {"drain": None, "trusted_since": now}
    else:
        values = {"drain": Drain(running=running, by=actor.name, at=now, reasons=why)}
    connection.execute(update(nodes).where(nodes.c.name == name).values(values))
    event = NewEvent(
        NodeDrained(draining=running is not None, running=running, reasons=why),
        actor,
        Subject(node=name),
        f"{name}: {_in_words(running)}" + (f" ({'; '.join(why)})" if why else ""),
    )
    append_event(context, connection, event)


def _in_words(running: Running | None) -> str:
    if running is None:
        return "in use again"
    if running == "finish":
        return "nothing new is placed; running jobs finish"
    return "nothing new is placed; running jobs save, leave and continue elsewhere"
