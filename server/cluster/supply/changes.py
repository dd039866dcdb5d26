"""Changes to sources and to requests for nodes, each with its event in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from server.cluster.supply.rows import NodeRequest, StoredSource
from server.core.context import Context
from server.core.database.source_tables import node_requests, sources
from server.core.database.tables import nodes
from server.core.events.store import NewEvent, append_event, append_events
from server.core.lifecycle import move_requests
from server.core.subject import SERVER, Actor, Subject
from trainyard.protocol.node_sources.messages import Purpose
from trainyard.protocol.node_sources.views import NodesReleased, NodesRequested, SourceChanged
from trainyard.protocol.rest.nodes import Drain, Running
from trainyard.protocol.states import NodeRequestState


@dataclass(frozen=True)
class NewRequest:
    """A new request for nodes, to be stored."""

    nodes: int
    caused_by: str
    purpose: Purpose = "nodes"
    by_person: bool = False


def source_changed(
    context: Context, connection: Connection, *, name: str, message: str, actor: Actor = SERVER
) -> None:
    """Store the event for a change to a source; the caller has already stored the change."""
    row = StoredSource.one(connection, StoredSource.select().where(sources.c.name == name))
    changed = SourceChanged(
        source=name,
        online=not row.is_away,
        paused=row.paused_at is not None,
        needs_login=row.needs_login is not None,
    )
    append_event(context, connection, NewEvent(changed, actor, Subject(), message))


def pause(
    context: Context,
    connection: Connection,
    *,
    source: StoredSource,
    reason: str | None,
    actor: Actor,
) -> None:
    """Pause a locked source. No more nodes are requested from it; its open requests stay."""
    values = {"paused_at": context.now(), "paused_by": actor.name, "pause_reason": reason}
    connection.execute(update(sources).where(sources.c.name == source.name).values(values))
    why = "" if reason is None else f": {reason}"
    source_changed(
        context, connection, name=source.name, message=f"{source.name} is paused{why}", actor=actor
    )


def store_requests(
    context: Context,
    connection: Connection,
    source: StoredSource,
    new: Sequence[NewRequest],
    *,
    actor: Actor,
) -> list[str]:
    """Store new requests for nodes from a locked source, and return the ids of the requests."""
    if not new:
        return []
    now = context.now()
    rows: list[dict[str, Any]] = []
    asked: list[NewEvent] = []
    for each in new:
        row: dict[str, Any] = {
            "id": context.new_id(),
            "source": source.name,
            "purpose": each.purpose,
            "state": NodeRequestState.WANTED.value,
            "nodes": each.nodes,
            "seconds": source.request_seconds,
            "shape": source.shape,
            "caused_by": each.caused_by,
            "by_person": each.by_person,
            "created_at": now,
        }
        requested = NodesRequested(request_id=row["id"], source=source.name, nodes=each.nodes)
        message = f"{_nodes(each.nodes)} of {source.name} requested for {each.caused_by}"
        rows.append(row)
        asked.append(NewEvent(requested, actor, Subject(), message))
    connection.execute(insert(node_requests), rows)
    append_events(context, connection, asked)
    return [row["id"] for row in rows]


def withdraw(
    context: Context,
    connection: Connection,
    *,
    requests: Sequence[NodeRequest],
    reason: str,
    actor: Actor,
) -> None:
    """Withdraw open requests of a locked source; the engine is ordered to cancel their jobs.

    A request without a claim ends immediately, because a later claim is refused.
    """
    unclaimed = [each for each in requests if each.claimed_at is None and each.ref is None]
    end_requests(context, connection, unclaimed, reason, actor=actor)
    # An engine job that has ended needs no cancel; its request waits for proof of the job's end.
    rest = [
        each
        for each in requests
        if each not in unclaimed and each.cancel_at is None and each.engine_state != "ended"
    ]
    leave(context, connection, rest, reason, actor=actor, cancel_at=context.now())


def leave(
    context: Context,
    connection: Connection,
    requests: Sequence[NodeRequest],
    reason: str,
    *,
    actor: Actor,
    **values: Any,
) -> None:
    """Move requests of a locked source to `leaving`, drain their nodes, and set `values`."""
    leaving = [each for each in requests if each.state == NodeRequestState.LEAVING]
    moving = [each for each in requests if each.state != NodeRequestState.LEAVING]
    if leaving and values:
        of_leaving = node_requests.c.id.in_([each.id for each in leaving])
        connection.execute(update(node_requests).where(of_leaving).values(values))
    if moving:
        ids = [each.id for each in moving]
        drain_nodes(context, connection, requests=ids, reason=reason, actor=actor)
        rows = [{"id": request_id, "reason": reason, **values} for request_id in ids]
        move_requests(connection, NodeRequestState.LEAVING, rows)
        _released(context, connection, requests=moving, reason=reason, actor=actor, ended=False)


def drain_nodes(
    context: Context,
    connection: Connection,
    *,
    requests: Sequence[str],
    reason: str,
    actor: Actor,
    running: Running = "move",
) -> None:
    """Drain the nodes of requests; if `running` is `finish`, drained nodes stay unchanged."""
    drain = Drain(running=running, by=actor.name, at=context.now(), reasons=(reason[:500],))
    of_requests = nodes.c.request_id.in_(requests)
    # Sorted by name, as in every statement that locks several nodes, to prevent deadlocks.
    locked = select(nodes.c.name).where(of_requests).order_by(nodes.c.name)
    if running == "finish":
        locked = locked.where(nodes.c.drain.is_(None))
    names = connection.scalars(locked.with_for_update(key_share=True)).all()
    if names:
        connection.execute(update(nodes).where(nodes.c.name.in_(names)).values(drain=drain))


def end_requests(
    context: Context,
    connection: Connection,
    requests: Sequence[NodeRequest],
    reason: str,
    *,
    actor: Actor,
) -> None:
    """End open requests of a locked source that have no jobs left in the engine."""
    if not requests:
        return
    now = context.now()
    rows = [{"id": each.id, "reason": reason, "ended_at": now, "ask": None} for each in requests]
    move_requests(connection, NodeRequestState.ENDED, rows)
    _released(context, connection, requests=requests, reason=reason, actor=actor, ended=True)


def _released(
    context: Context,
    connection: Connection,
    *,
    requests: Sequence[NodeRequest],
    reason: str,
    actor: Actor,
    ended: bool,
) -> None:
    what = "ended" if ended else "withdrawn"
    released = [
        NewEvent(
            NodesReleased(request_id=each.id, source=each.source, nodes=each.nodes, ended=ended),
            actor,
            Subject(),
            f"{_nodes(each.nodes)} of {each.source} {what}" + (f": {reason}" if reason else ""),
        )
        for each in requests
    ]
    append_events(context, connection, released)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
