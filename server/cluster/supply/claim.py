"""Claims of requests by provisioners; a claim stores the hashes of the pilots' secrets."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update

from server.cluster.supply.rows import NodeRequest, lock_source, one_request
from server.core.context import Context
from server.core.database.source_tables import node_requests, pilots
from server.core.errors import ConflictError, InvalidRequestError
from trainyard.protocol.node_sources.messages import RequestClaim, RequestOrder
from trainyard.protocol.states import NodeRequestState

WANTED_STATES = frozenset(
    {NodeRequestState.WANTED, NodeRequestState.PENDING, NodeRequestState.RUNNING}
)


def claim_request(context: Context, request_id: str, claim: RequestClaim) -> RequestOrder:
    """Claim a request, and return the order for the engine; the first claim stores the hashes.

    Raises:
        NotFoundError: the source has no such request.
        InvalidRequestError: there are fewer hashes than nodes, or two hashes are equal.
        ConflictError: the request was claimed with other secrets, or another request has one of
            these secrets.
    """
    with context.database.write() as connection:
        lock_source(connection, claim.source)
        request = one_request(connection, request_id, source=claim.source)
        wanted = request.cancel_at is None and request.state in WANTED_STATES
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
