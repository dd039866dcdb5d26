"""`/provisioners`: API for provisioners, which call the engines. It needs the token of a source."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from server.api.auth.dependencies import Source, SourceJoiner
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import RequestId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.cluster.supply.claim import claim_request
from server.cluster.supply.endpoints import SharesEnd
from server.cluster.supply.enroll import check_sender, register_source
from server.cluster.supply.report import store_report
from trainyard.protocol.node_sources.messages import (
    RequestClaim,
    RequestOrder,
    SourceRegistration,
    SourceRegistrationReply,
    SourceReport,
    SourceReportReply,
)

router = APIRouter(prefix="/provisioners", tags=["provisioners"])


@router.post(
    "/register", response_model=SourceRegistrationReply, summary="Registration of a source"
)
def register(
    context: ServerContext,
    principal: SourceJoiner,
    body: Annotated[SourceRegistration, Depends(JsonBody(SourceRegistration))],
) -> Response:
    """Register a source with a join token, or register it again with its own token."""
    return reply(register_source(context, body, principal=principal))


@router.post(
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
    """Return the order for the engine; a repeat with the same secrets gets the same response."""
    check_sender(principal, body.source, body.protocol)
    return reply(claim_request(context, request_id, body))


@router.post("/report", response_model=SourceReportReply, summary="Report of an engine's jobs")
def report(
    context: ServerContext,
    principal: Source,
    end_shares: SharesEnd,
    body: Annotated[SourceReport, Depends(JsonBody(SourceReport))],
) -> Response:
    """Store the engine's description of its jobs; the response lists the jobs to cancel."""
    check_sender(principal, body.source, body.protocol)
    return reply(store_report(context, body, end_shares=end_shares))
