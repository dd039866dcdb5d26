"""`/sources`: sources of nodes and their requests; `/provisioners`: the calls of provisioners."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Query, Request, Response

from server.api.auth.dependencies import Source, SourceJoiner, may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import RequestId, SourceName
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.cluster.supply import queries, service
from server.cluster.supply.enroll import check_sender, claim_request, register_source
from server.cluster.supply.gone_nodes import EndShares
from server.cluster.supply.report import store_report
from trainyard.protocol.node_sources.messages import (
    SOURCE_NAME,
    RequestClaim,
    RequestOrder,
    SourceRegistration,
    SourceRegistrationReply,
    SourceReport,
    SourceReportReply,
)
from trainyard.protocol.node_sources.views import (
    NodeRequestView,
    NodesRequest,
    SourceOrder,
    SourceView,
)
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.common import Page

SourcesRead = Annotated[Principal, may(Permission.SOURCES_READ)]
SourcesWrite = Annotated[Principal, may(Permission.SOURCES_WRITE)]

router = APIRouter(prefix="/sources", tags=["sources"])
provisioner_router = APIRouter(prefix="/provisioners", tags=["provisioners"])
"""API for provisioners, which call the engines. Each call needs the token of a source; the first
registration needs a join token."""

OrderBody = Annotated[SourceOrder, Depends(JsonBody(SourceOrder, default=SourceOrder()))]
NodesBody = Annotated[NodesRequest, Depends(JsonBody(NodesRequest, default=NodesRequest()))]


async def _end_shares_of(request: Request) -> EndShares:
    return cast(EndShares, request.app.state.end_shares)


SharesEnd = Annotated[EndShares, Depends(_end_shares_of)]
"""Function that ends the shares on nodes that are gone."""


@router.get(
    "",
    dependencies=[may(Permission.SOURCES_READ)],
    response_model=Page[SourceView],
    summary="The sources of nodes",
)
def list_(
    context: ServerContext,
    page: Annotated[PageRequest[str], Depends(page_by("sources", str, SOURCE_NAME))],
) -> Response:
    """List sources by name, with their nodes, limits, requests and use."""
    views = queries.list_sources(context, after=page.after, limit=page.limit)
    shown, next_page_token = page.cut(views, lambda view: view.name)
    return reply(Page[SourceView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/{name}",
    dependencies=[may(Permission.SOURCES_READ)],
    response_model=SourceView,
    summary="One source",
)
def show(context: ServerContext, name: SourceName) -> Response:
    """Return one source."""
    with context.database.read() as connection:
        return reply(queries.source_view(context, connection, name))


@router.delete("/{name}", status_code=204, summary="Forget a source")
def delete(context: ServerContext, principal: SourcesWrite, name: SourceName) -> None:
    """Delete a source without open requests.

    Its provisioner can register again only with a new join token.
    """
    service.delete_source(context, name, actor=principal.actor)


@router.post("/{name}/pause", response_model=SourceView, summary="Pause a source")
def pause(
    context: ServerContext, principal: SourcesWrite, name: SourceName, body: OrderBody
) -> Response:
    """Request no more nodes from a source; its nodes and open requests stay."""
    return reply(service.pause_source(context, name, body.reason, actor=principal.actor))


@router.post("/{name}/unpause", response_model=SourceView, summary="End a pause of a source")
def unpause(context: ServerContext, principal: SourcesWrite, name: SourceName) -> Response:
    """Request nodes from the source again when queued jobs need them."""
    return reply(service.unpause_source(context, name, actor=principal.actor))


@router.post(
    "/{name}/check", status_code=202, response_model=NodeRequestView, summary="Check a source"
)
def check(context: ServerContext, principal: SourcesWrite, name: SourceName) -> Response:
    """Request one node, on which a pilot runs checks. The view of the request has the results."""
    return reply(service.check_source(context, name, actor=principal.actor), status=202)


@router.get(
    "/{name}/requests",
    dependencies=[may(Permission.SOURCES_READ)],
    response_model=Page[NodeRequestView],
    summary="Requests for nodes",
)
def list_requests(
    context: ServerContext,
    name: SourceName,
    page: Annotated[PageRequest[str], Depends(page_by("node-requests", str))],
    open_only: Annotated[
        bool | None,
        Query(alias="open", description="Open requests (true) or ended ones; all if absent."),
    ] = None,
) -> Response:
    """List the requests of a source with the engine's reasons, the newest first."""
    views = queries.list_requests(
        context, name, open_only=open_only, after=page.after, limit=page.limit
    )
    shown, next_page_token = page.cut(views, lambda view: view.id)
    return reply(Page[NodeRequestView](items=tuple(shown), next_page_token=next_page_token))


@router.post(
    "/{name}/requests", status_code=201, response_model=NodeRequestView, summary="Request nodes"
)
def request(
    context: ServerContext, principal: SourcesWrite, name: SourceName, body: NodesBody
) -> Response:
    """Request nodes independently of the queue; nodes that stay idle are released."""
    asked = service.request_nodes(context, name, body.nodes, actor=principal.actor)
    return reply(asked, status=201)


@router.get(
    "/{name}/requests/{request_id}",
    dependencies=[may(Permission.SOURCES_READ)],
    response_model=NodeRequestView,
    summary="One request",
)
def show_request(context: ServerContext, name: SourceName, request_id: RequestId) -> Response:
    """Return one request for nodes."""
    with context.database.read() as connection:
        return reply(queries.request_view(connection, name, request_id))


@router.post(
    "/{name}/requests/{request_id}/cancel",
    response_model=NodeRequestView,
    summary="Cancel a request",
)
def cancel(
    context: ServerContext, principal: SourcesWrite, name: SourceName, request_id: RequestId
) -> Response:
    """Cancel a request, which ends once the engine proves that no job of the request is left."""
    return reply(service.cancel_request(context, name, request_id, actor=principal.actor))


@router.post(
    "/{name}/requests/{request_id}/end",
    response_model=NodeRequestView,
    summary="Forget a request that the engine does not know",
)
def end(
    context: ServerContext,
    principal: SourcesWrite,
    end_shares: SharesEnd,
    name: SourceName,
    request_id: RequestId,
) -> Response:
    """End a request although the engine has not proved its end; its nodes count as gone."""
    view = service.end_request(
        context, name, request_id, actor=principal.actor, end_shares=end_shares
    )
    return reply(view)


@router.post(
    "/{name}/requests/{request_id}/explain",
    status_code=202,
    response_model=NodeRequestView,
    summary="Ask the engine why a request waits",
)
def explain(
    context: ServerContext, principal: SourcesRead, name: SourceName, request_id: RequestId
) -> Response:
    """Let the engine explain why a request waits; the request's reason then contains the answer."""
    return reply(
        service.explain_request(context, name, request_id, actor=principal.actor), status=202
    )


# ---- calls of provisioners -----------------------------------------------------------------------


@provisioner_router.post(
    "/register", response_model=SourceRegistrationReply, summary="Registration of a source"
)
def register(
    context: ServerContext,
    principal: SourceJoiner,
    body: Annotated[SourceRegistration, Depends(JsonBody(SourceRegistration))],
) -> Response:
    """Register a source with a join token, or register it again with its own token."""
    return reply(register_source(context, body, principal=principal))


@provisioner_router.post(
    "/requests/{request_id}/claim",
    response_model=RequestOrder,
    summary="Claim of a request for nodes",
)
def claim(
    context: ServerContext,
    principal: Source,
    request_id: RequestId,
    body: Annotated[RequestClaim, Depends(JsonBody(RequestClaim))],
) -> Response:
    """Return the order for the engine; a second claim with equal secrets gets the same response."""
    check_sender(principal, body.source, body.protocol)
    return reply(claim_request(context, request_id, body))


@provisioner_router.post(
    "/report", response_model=SourceReportReply, summary="Report of an engine's jobs"
)
def report(
    context: ServerContext,
    principal: Source,
    end_shares: SharesEnd,
    body: Annotated[SourceReport, Depends(JsonBody(SourceReport))],
) -> Response:
    """Store the engine's description of its jobs; the response lists the jobs to cancel."""
    check_sender(principal, body.source, body.protocol)
    return reply(store_report(context, body, end_shares=end_shares))
