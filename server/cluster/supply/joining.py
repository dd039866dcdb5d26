"""Pilots join as nodes with their join secret, one instance at a time (docs/sources.md, 7)."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, exists, select, update

from server.api.auth.principals import Principal
from server.api.auth.tokens import TokenKind
from server.cluster.nodes.register import Admitted, register
from server.cluster.supply.rows import NodeRequest, Pilot, StoredSource, lock_source
from server.core.addresses import address_of
from server.core.context import Context
from server.core.database.source_tables import node_requests, pilots
from server.core.database.tables import nodes, tokens
from server.core.errors import ConflictError, ForbiddenError, NotFoundError, NotNamedError
from trainyard.base.labels import Labels
from trainyard.protocol.node_sources.messages import (
    SOURCE_LABEL,
    CheckReport,
    PilotIdentity,
    pilot_name,
)
from trainyard.protocol.states import NodeRequestState
from trainyard.protocol.worker_messages import Registration, RegistrationReply


def register_pilot(
    context: Context, registration: Registration, *, principal: Principal, host: str
) -> RegistrationReply:
    """Register a pilot as a node, or register the node again; `host` is the client's address.

    Raises:
        NotFoundError: the request or the pilot is unknown.
        ForbiddenError: the secret or token belongs to another pilot, the name is wrong, or the
            client's address is not one that the engine names for the pilot.
        ConflictError: the request has ended, was withdrawn, or is a check; the instance has ended;
            or the secret is used again while the pilot's node is online.
        NotNamedError: the engine has not named this instance or its address, or has not proved the
            end of the former instance. The request's status is then queried immediately.
    """
    identity = registration.pilot
    if identity is None:
        raise ForbiddenError("the join secret of a pilot takes in that pilot alone: send /pilot")
    if principal.pilot is None and principal.node is None:
        raise ForbiddenError("a pilot joins by the secret of its request, not by a join token")
    if principal.pilot not in (None, (identity.request_id, identity.index)):
        raise ForbiddenError(f"this is the secret of {principal.name}, not of this pilot")

    def admit(connection: Connection) -> Admitted:
        admitted = _admit(connection, registration, identity=identity, host=host)
        if principal.node is None:
            _refuse_again(connection, admitted.registration.node)
        return admitted

    try:
        return register(context, registration, principal=principal, admit=admit)
    except NotNamedError:
        _ask(context, identity.request_id)
        raise


def store_check(context: Context, report: CheckReport, *, principal: Principal, host: str) -> None:
    """Store the results of a check; only the first report of the pilot counts.

    Raises:
        NotFoundError: the request or the pilot is unknown.
        ForbiddenError: the secret belongs to another pilot, or the client's address is not one that
            the engine names for the pilot.
        ConflictError: the request is not a check, has ended, or was withdrawn.
        NotNamedError: the engine has not named this instance or its address. The status of the
            request is then queried immediately.
    """
    identity = report.pilot
    if principal.pilot != (identity.request_id, identity.index):
        raise ForbiddenError(f"this is the secret of {principal.name}, not of this pilot")
    try:
        with context.database.write() as connection:
            source, request = _locked(connection, identity.request_id)
            if request.purpose != "check":
                why = f"request {request.id} is no check: its pilots register as nodes"
                raise ConflictError(why)
            _check_open(request)
            pilot = _pilot(connection, request, identity.index)
            _check_instance(request, pilot, identity.instance)
            _check_address(source, pilot, host)
            if request.results is None:
                found = update(node_requests).where(node_requests.c.id == request.id)
                connection.execute(found.values(results=report.results))
    except NotNamedError:
        _ask(context, identity.request_id)
        raise


def _admit(
    connection: Connection, registration: Registration, *, identity: PilotIdentity, host: str
) -> Admitted:
    source, request = _locked(connection, identity.request_id)
    name = pilot_name(source.name, request.id, identity.index)
    if registration.node != name:
        raise ForbiddenError(f"the pilot becomes node {name!r}, not {registration.node!r}")
    if request.purpose != "nodes":
        raise ConflictError(f"request {request.id} is a check: its pilot reports its findings")
    _check_open(request)
    pilot = _pilot(connection, request, identity.index)
    rejoins = pilot.joined == identity.instance and pilot.gone_at is None
    if not rejoins:
        _check_instance(request, pilot, identity.instance)
    _check_address(source, pilot, host)
    if not rejoins:
        joined = update(pilots).where(_is_pilot(request.id, identity.index))
        connection.execute(joined.values(joined=identity.instance, gone_at=None))
    labels: Labels = {**registration.labels, **request.shape.labels, SOURCE_LABEL: source.name}
    return Admitted(registration.model_copy(update={"labels": labels}), request.id, request.ends_at)


def _refuse_again(connection: Connection, node: str) -> None:
    """Refuse a join secret if the secret's node is online and has already used its node token.

    Address, instance, data folder and boot do not prove who the client is, because other users on
    the pilot's machine know them. A registration may be repeated only until the node's token is
    first used, because until then the response with this token may have been lost.
    """
    online = exists().where(nodes.c.name == node, nodes.c.offline_since.is_(None))
    of_node = (tokens.c.node == node) & (tokens.c.kind == TokenKind.NODE)
    used = tokens.c.revoked_at.is_(None) & tokens.c.last_used_at.is_not(None)
    if connection.scalar(select(online & exists().where(of_node, used))):
        raise ConflictError(
            f"{node!r} has joined with this secret, and is online: its worker registers again with "
            "the token of the node"
        )


def _locked(connection: Connection, request_id: str) -> tuple[StoredSource, NodeRequest]:
    found = select(node_requests.c.source).where(node_requests.c.id == request_id)
    name = connection.scalar(found)
    if name is None:
        raise NotFoundError(f"no request for nodes has the id {request_id!r}")
    source = lock_source(connection, name)
    row = NodeRequest.select().where(node_requests.c.id == request_id)
    return source, NodeRequest.one(connection, row)


def _pilot(connection: Connection, request: NodeRequest, index: int) -> Pilot:
    of_pilot = _is_pilot(request.id, index)
    pilot = Pilot.one_or_none(connection, Pilot.select().where(of_pilot))
    if pilot is None:
        raise NotFoundError(f"request {request.id} has no pilot {index}")
    return pilot


def _is_pilot(request_id: str, index: int) -> ColumnElement[bool]:
    return (pilots.c.request_id == request_id) & (pilots.c.number == index)


def _check_open(request: NodeRequest) -> None:
    if request.state == NodeRequestState.ENDED:
        raise ConflictError(f"request {request.id} has ended")
    if request.cancel_at is not None:
        raise ConflictError(f"request {request.id} was withdrawn")


def _check_instance(request: NodeRequest, pilot: Pilot, instance: str) -> None:
    """Check that the engine names this instance, and that no other instance can still be alive."""
    if pilot.joined is not None and pilot.gone_at is None:
        raise NotNamedError(
            f"instance {pilot.joined!r} of this pilot joined, and its end is not proved"
        )
    if pilot.joined == instance:
        raise ConflictError(f"instance {instance!r} of this pilot has ended, as its engine proved")
    if pilot.named != instance:
        named = "none" if pilot.named is None else repr(pilot.named)
        raise NotNamedError(
            f"the engine names {named}, not {instance!r}, as the instance of pilot "
            f"{pilot.number} of request {request.id}"
        )


def _check_address(source: StoredSource, pilot: Pilot, host: str) -> None:
    """Check that the client's address is one that the engine names for the pilot.

    The check also fails if the engine names no address, because the pilot would then look the same
    as a thief of its secret.
    """
    if not source.check_addresses:
        return
    who = f"pilot {pilot.number} of request {pilot.request_id}"
    remedy = f"turn check_addresses of source {source.name!r} off"
    named = [found for each in pilot.addresses if (found := address_of(each)) is not None]
    if not named:
        raise NotNamedError(
            f"{source.kind} names no address of {who}, which calls from {host}. If it never names "
            f"one, {remedy}: then anyone with the secret can join from anywhere"
        )
    if address_of(host) not in named:
        legal = ", ".join(pilot.addresses)
        raise ForbiddenError(
            f"{who} calls from {host}; {source.kind} names {legal}. Where pilots reach the server "
            f"through NAT or a proxy, {remedy}"
        )


def _ask(context: Context, request_id: str) -> None:
    """Order the provisioner to query the engine's status of a request immediately."""
    asked = update(node_requests).where(
        node_requests.c.id == request_id, node_requests.c.ask.is_(None)
    )
    with context.database.write() as connection:
        connection.execute(asked.values(ask="status"))
