"""Changes to nodes: drains, cordons and labels, each with its event in the same transaction.

A drained node gets no new work, and its running attempts move or finish. A cordon is a drain that
lets attempts finish; it usually has reasons (docs/lifecycle-placing.md, 42).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select, update

from server.api.auth.endings import write_as
from server.cluster.nodes.queries import node_view, one_node
from server.core.context import Context
from server.core.database.tables import nodes
from server.core.errors import InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.subject import SERVER, Actor, Subject
from trainyard.base.labels import MAX_LABELS
from trainyard.protocol.rest.nodes import Drain, NodeDrained, NodeLabeled, NodeView, Running


def set_drain(
    context: Context,
    name: str,
    running: Running | None,
    *,
    actor: Actor,
    reasons: Sequence[str] = (),
) -> NodeView:
    """Drain a node, or end its drain; an order that is already in effect changes nothing.

    `running` decides whether the scheduler moves running attempts or lets them finish. If `running`
    is None, the drain ends; faults from before the end of the drain no longer count against the
    node.

    Raises:
        NotFoundError: no node has this name.
    """
    with write_as(context, actor) as connection:
        before = one_node(connection, name, locked=True).drain
        same = before is not None and (before.running, before.reasons) == (running, (*reasons,))
        if not same and (before, running) != (None, None):
            _order(context, connection, name=name, running=running, actor=actor, reasons=reasons)
        return node_view(context, connection, name, scope=actor.scope)


def cordon_by_server(
    context: Context, connection: Connection, *, name: str, reasons: Sequence[str]
) -> None:
    """Cordon an unreliable node unless it is already drained; the caller has locked the row."""
    undrained = select(nodes.c.name).where(nodes.c.name == name, nodes.c.drain.is_(None))
    if connection.scalar(undrained) is not None:
        _order(context, connection, name=name, running="finish", actor=SERVER, reasons=reasons)


def set_labels(
    context: Context, name: str, labels: Mapping[str, str | None], *, actor: Actor
) -> NodeView:
    """Set labels of a node, or remove labels with the value None; attempts on the node stay there.

    Raises:
        NotFoundError: no node has this name.
        InvalidRequestError: the node would have more than `MAX_LABELS` labels set by people.
    """
    with write_as(context, actor) as connection:
        before = one_node(connection, name, locked=True).set_labels
        after = {key: value for key, value in {**before, **labels}.items() if value is not None}
        if len(after) > MAX_LABELS:
            detail = f"{name} would have {len(after)} labels; at most {MAX_LABELS} are legal"
            raise InvalidRequestError.at("/labels", detail)
        changed = {key: after.get(key) for key in labels if after.get(key) != before.get(key)}
        if changed:
            connection.execute(update(nodes).where(nodes.c.name == name).values(set_labels=after))
            message = f"labels of {name}: {_labels_in_words(changed)}"
            event = NewEvent(NodeLabeled(changed=changed), actor, Subject(node=name), message)
            append_event(context, connection, event)
        return node_view(context, connection, name, scope=actor.scope)


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
        f"{name}: {_drain_in_words(running)}" + (f" ({'; '.join(why)})" if why else ""),
    )
    append_event(context, connection, event)


def _drain_in_words(running: Running | None) -> str:
    if running is None:
        return "in use again"
    if running == "finish":
        return "nothing new is placed; running jobs finish"
    return "nothing new is placed; running jobs save, leave and continue elsewhere"


def _labels_in_words(changed: Mapping[str, str | None]) -> str:
    return ", ".join(
        f"{key} withdrawn" if value is None else f"{key}={value}"
        for key, value in sorted(changed.items())
    )
