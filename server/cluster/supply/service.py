"""Orders that people give to sources: pause, request nodes, cancel, check, delete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, delete, update

from server.api.auth.endings import write_as
from server.cluster.supply.changes import (
    NewRequest,
    end_requests,
    pause,
    source_changed,
    store_requests,
    withdraw,
)
from server.cluster.supply.gone_nodes import EndShares, forget_worker, shares_on
from server.cluster.supply.queries import request_view, source_view
from server.cluster.supply.rows import (
    NodeRequest,
    StoredSource,
    lock_source,
    one_request,
    open_requests,
)
from server.cluster.supply.usage import HOUR, read_use
from server.core.context import Context
from server.core.database.source_tables import node_requests, pilots, sources
from server.core.database.tables import tokens
from server.core.errors import ConflictError, InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.subject import Actor, Subject
from trainyard.protocol.node_sources.messages import Purpose, pilot_name
from trainyard.protocol.node_sources.views import NodeRequestView, SourceChanged, SourceView
from trainyard.protocol.states import NodeRequestState


def pause_source(context: Context, name: str, reason: str | None, *, actor: Actor) -> SourceView:
    """Pause a source, so that no more nodes are requested; repeating the order changes nothing.

    Raises:
        NotFoundError: no source has this name.
    """
    with write_as(context, actor) as connection:
        source = lock_source(connection, name)
        if source.paused_at is None or source.pause_reason != reason:
            pause(context, connection, source=source, reason=reason, actor=actor)
        return source_view(context, connection, name)


def unpause_source(context: Context, name: str, *, actor: Actor) -> SourceView:
    """End the pause of a source; a source that is not paused is not changed.

    Raises:
        NotFoundError: no source has this name.
    """
    with write_as(context, actor) as connection:
        source = lock_source(connection, name)
        if source.paused_at is not None:
            free = dict.fromkeys(("paused_at", "paused_by", "pause_reason"))
            connection.execute(update(sources).where(sources.c.name == name).values(free))
            source_changed(
                context, connection, name=name, message=f"{name} is in use again", actor=actor
            )
        return source_view(context, connection, name)


def request_nodes(context: Context, name: str, count: int, *, actor: Actor) -> NodeRequestView:
    """Request nodes from a source independently of the queue.

    Raises:
        NotFoundError: no source has this name.
        InvalidRequestError: `count` is above the source's maximum number of nodes per request.
        ConflictError: the source is paused, or the request would exceed the source's limits.
    """
    with write_as(context, actor) as connection:
        source = lock_source(connection, name)
        most = source.limits.nodes_per_request
        if count > most:
            raise InvalidRequestError.at(
                "/nodes", f"{count} is more than a request of {name!r} may have; legal: 1 to {most}"
            )
        _check_limits(context, connection, source=source, count=count)
        return _store(context, connection, source=source, count=count, purpose="nodes", actor=actor)


def check_source(context: Context, name: str, *, actor: Actor) -> NodeRequestView:
    """Store a request for one node on which a pilot runs checks, or return the open check request.

    Raises:
        NotFoundError: no source has this name.
    """
    with write_as(context, actor) as connection:
        source = lock_source(connection, name)
        for each in open_requests(connection, name):
            if each.purpose == "check" and each.cancel_at is None:
                return request_view(connection, name, each.id)
        return _store(context, connection, source=source, count=1, purpose="check", actor=actor)


def cancel_request(
    context: Context, name: str, request_id: str, *, actor: Actor
) -> NodeRequestView:
    """Cancel a request in the engine; an ended or cancelled request is not changed.

    Raises:
        NotFoundError: the source has no such request.
    """
    with _locked(context, name, request_id, actor=actor) as (connection, request):
        if request.state != NodeRequestState.ENDED:
            why = f"cancelled by {actor.name}"
            withdraw(context, connection, requests=[request], reason=why, actor=actor)
        return request_view(connection, name, request_id)


def end_request(
    context: Context, name: str, request_id: str, *, actor: Actor, end_shares: EndShares
) -> NodeRequestView:
    """End a request without a proof from the engine; the nodes of the request count as gone.

    Raises:
        NotFoundError: the source has no such request.
        ConflictError: the engine's job has not ended, and the provisioner is online.
    """
    with _locked(context, name, request_id, actor=actor) as (connection, request):
        ended = [pilot_name(name, request_id, number) for number in range(request.nodes)]
        if request.state != NodeRequestState.ENDED:
            known = request.engine_state not in ("unknown", "ended")
            if known and lock_source(connection, name).is_online(context.now()):
                raise ConflictError(
                    f"the engine of {name!r} has request {request_id} as "
                    f"{request.engine_state!r}: cancel it"
                )
            why = f"ended by {actor.name}"
            forget_worker(context, connection, ended, reason=why)
            end_requests(context, connection, [request], why, actor=actor)
            of_request = pilots.c.request_id == request_id
            connection.execute(update(pilots).where(of_request).values(gone_at=context.now()))
        view = request_view(connection, name, request_id)
        shares = shares_on(connection, ended)
    # If the server dies before this call, repeating the order ends the shares.
    end_shares(context, shares)
    return view


def explain_request(
    context: Context, name: str, request_id: str, *, actor: Actor
) -> NodeRequestView:
    """Have the provisioner query why a request waits; the answer is added to the request's reason.

    Raises:
        NotFoundError: the source has no such request.
        ConflictError: the request has ended.
    """
    with _locked(context, name, request_id, actor=actor) as (connection, request):
        if request.state == NodeRequestState.ENDED:
            raise ConflictError(f"request {request_id} has ended: {request.reason}")
        asked = update(node_requests).where(node_requests.c.id == request_id)
        connection.execute(asked.values(ask="explain"))
        return request_view(connection, name, request_id)


def delete_source(context: Context, name: str, *, actor: Actor) -> None:
    """Delete a source and its requests; revoke its token.

    Raises:
        NotFoundError: no source has this name.
        ConflictError: the source has open requests.
    """
    with write_as(context, actor) as connection:
        lock_source(connection, name)
        count = len(open_requests(connection, name))
        if count:
            raise ConflictError(f"source {name!r} has {count} open requests; cancel them first")
        now = context.now()
        of_source = (tokens.c.source == name) & tokens.c.revoked_at.is_(None)
        connection.execute(update(tokens).where(of_source).values(revoked_at=now))
        connection.execute(delete(sources).where(sources.c.name == name))
        changed = SourceChanged(source=name, online=False, paused=False, needs_login=False)
        event = NewEvent(changed, actor, Subject(), f"source {name} is deleted")
        append_event(context, connection, event)


@contextmanager
def _locked(
    context: Context, name: str, request_id: str, *, actor: Actor
) -> Iterator[tuple[Connection, NodeRequest]]:
    with write_as(context, actor) as connection:
        lock_source(connection, name)
        yield connection, one_request(connection, request_id, source=name)


def _check_limits(
    context: Context, connection: Connection, *, source: StoredSource, count: int
) -> None:
    name, limits = source.name, source.limits
    if source.paused_at is not None:
        why = "" if source.pause_reason is None else f" ({source.pause_reason})"
        raise ConflictError(f"source {name!r} is paused{why}: unpause it first")
    use = read_use(connection, [name], context.now())[name]
    left = use.left(limits)
    if count > left.nodes:
        raise ConflictError(
            f"{count} nodes exceed the limit of source {name!r}: {limits.nodes - left.nodes} of "
            f"{limits.nodes} are asked for or allocated"
        )
    if left.requests <= 0:
        raise ConflictError(f"{use.pending} requests of {name!r} wait already, its limit")
    adds = count * (source.request_seconds or 0.0) / HOUR
    if left.node_hours is not None and adds > left.node_hours:
        raise ConflictError(
            f"source {name!r} has {limits.node_hours_per_month:g} node-hours a month, of which "
            f"{use.committed:.1f} are used or asked for; this needs {adds:.1f} more"
        )


def _store(
    context: Context,
    connection: Connection,
    *,
    source: StoredSource,
    count: int,
    purpose: Purpose,
    actor: Actor,
) -> NodeRequestView:
    new = NewRequest(nodes=count, caused_by=actor.name, purpose=purpose, by_person=True)
    (request_id,) = store_requests(context, connection, source, [new], actor=actor)
    return request_view(connection, source.name, request_id)
