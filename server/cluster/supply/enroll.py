"""Registration of a source by its provisioner, and claims of requests for nodes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update

from server.api.auth.principals import Principal
from server.api.auth.service import replace_token_of, use_up_join_token
from server.api.auth.tokens import TokenKind
from server.api.http.worker_protocol import check_protocol
from server.cluster.supply.changes import source_changed
from server.cluster.supply.rows import (
    NodeRequest,
    StoredSource,
    lock_source,
    one_request,
    open_requests,
)
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.source_tables import node_requests, pilots, sources
from server.core.errors import ConflictError, ForbiddenError, InvalidRequestError
from trainyard.protocol.node_sources.messages import (
    RequestClaim,
    RequestOrder,
    SourceRegistration,
    SourceRegistrationReply,
)
from trainyard.protocol.states import NodeRequestState


def check_sender(principal: Principal, source: str, protocol: int) -> None:
    """Check the protocol version and the token of a provisioner's call.

    Raises:
        InvalidRequestError: the protocol is not supported.
        ForbiddenError: the token belongs to another source.
    """
    check_protocol(protocol)
    if principal.kind is TokenKind.SOURCE and principal.source != source:
        raise ForbiddenError(f"this is the token of source {principal.source!r}, not of {source!r}")


def register_source(
    context: Context, registration: SourceRegistration, *, principal: Principal
) -> SourceRegistrationReply:
    """Register a source, or store its changed settings.

    A join token is used up, and the reply has a new token for the source. Earlier tokens of the
    source end.

    Raises:
        InvalidRequestError: the protocol is not supported.
        ForbiddenError: the token belongs to another source.
        UnauthenticatedError: another registration has used the join token meanwhile.
        ConflictError: another provisioner serves this source, or the source has open requests in
            another kind of engine.
    """
    name = registration.name
    check_sender(principal, name, registration.protocol)
    with context.database.write() as connection:
        found = StoredSource.select().where(sources.c.name == name).with_for_update(key_share=True)
        before = StoredSource.one_or_none(connection, found)
        token = None
        if principal.kind is not TokenKind.SOURCE:
            token = _join(context, connection, name=name, principal=principal, before=before)
        if before is not None and before.kind != registration.kind:
            count = len(open_requests(connection, name))
            if count:
                raise ConflictError(
                    f"source {name!r} has {count} open requests in {before.kind}; end them before "
                    f"it becomes one of {registration.kind}"
                )
        _store(context, connection, registration=registration, before=before)
        note_change(object=f"sources/{name}", after={"kind": registration.kind})
    return SourceRegistrationReply(source_token=token)


def claim_request(context: Context, request_id: str, claim: RequestClaim) -> RequestOrder:
    """Claim a request, and return the order for the engine.

    The first claim stores the hashes of the join secrets.

    Raises:
        NotFoundError: the source has no such request.
        InvalidRequestError: there are fewer hashes than nodes, or two hashes are equal.
        ConflictError: the request was claimed with other secrets, or another request has one of
            these secrets.
    """
    with context.database.write() as connection:
        lock_source(connection, claim.source)
        request = one_request(connection, request_id, source=claim.source)
        over = (NodeRequestState.LEAVING, NodeRequestState.ENDED)
        wanted = request.cancel_at is None and request.state not in over
        if wanted:
            _check_hashes(request, claim.secret_hashes)
            _keep_hashes(
                context, connection, request=request, hashes=claim.secret_hashes[: request.nodes]
            )
    url = context.settings.public_url
    return RequestOrder(
        request_id=request.id,
        purpose=request.purpose,
        nodes=request.nodes,
        seconds=request.seconds,
        wanted=wanted,
        urls=() if url is None else (url,),
    )


def _join(
    context: Context,
    connection: Connection,
    *,
    name: str,
    principal: Principal,
    before: StoredSource | None,
) -> str:
    use_up_join_token(context, connection, principal)
    if before is not None and before.is_online(context.now()):
        raise ConflictError(
            f"a provisioner serves source {name!r}; end it first, or give this source another name"
        )
    return replace_token_of(context, connection, kind=TokenKind.SOURCE, name=name)


def _store(
    context: Context,
    connection: Connection,
    *,
    registration: SourceRegistration,
    before: StoredSource | None,
) -> None:
    now, name = context.now(), registration.name
    settings = {
        field: getattr(registration, field)
        for field in SourceRegistration.model_fields
        if field not in ("protocol", "name")
    }
    settings["version"] = registration.version[:50]
    row = {**settings, "heard_at": now, "is_away": False}
    if before is None:
        connection.execute(insert(sources).values(name=name, registered_at=now, **row))
    else:
        connection.execute(update(sources).where(sources.c.name == name).values(row))
    same = before is not None and all(getattr(before, n) == v for n, v in settings.items())
    if before is None or before.is_away or not same:
        shape, limits = registration.shape, registration.limits
        offers = f"nodes of {shape.slots} {shape.device} slots, at most {limits.nodes}"
        source_changed(
            context, connection, name=name, message=f"source {name} is registered: {offers}"
        )


def _check_hashes(request: NodeRequest, hashes: Sequence[str]) -> None:
    # Extra hashes are legal, because a claim does not know the number of nodes.
    if len(hashes) < request.nodes:
        raise InvalidRequestError.at(
            "/secret_hashes",
            f"{len(hashes)} hashes; request {request.id} has {request.nodes} nodes, one hash each",
        )
    if len(set(hashes)) != len(hashes):
        raise InvalidRequestError.at("/secret_hashes", "two pilots have the same secret")


def _keep_hashes(
    context: Context, connection: Connection, *, request: NodeRequest, hashes: Sequence[str]
) -> None:
    of_request = pilots.c.request_id == request.id
    found = select(pilots.c.secret_hash).where(of_request).order_by(pilots.c.number)
    known = connection.scalars(found).all()
    if known:
        if list(known) != list(hashes):
            raise ConflictError(
                f"request {request.id} was claimed with other secrets: put back the file of its "
                "secrets, or cancel the request"
            )
        return
    elsewhere = select(pilots.c.request_id).where(pilots.c.secret_hash.in_(hashes)).limit(1)
    if connection.scalar(elsewhere) is not None:
        raise ConflictError("a pilot of another request has one of these secrets; draw new ones")
    connection.execute(
        insert(pilots),
        [
            {"request_id": request.id, "number": number, "secret_hash": each}
            for number, each in enumerate(hashes)
        ],
    )
    claimed = update(node_requests).where(node_requests.c.id == request.id)
    connection.execute(claimed.values(claimed_at=context.now()))
