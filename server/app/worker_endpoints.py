"""`/workers`: API for workers, pilots and supervisors.

It needs the token of a node or an attempt; to register or to check, a join token or join secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from server.api.auth.dependencies import AttemptTokenHash, Joiner, Node, Pilot
from server.api.http.dependencies import ServerContext, context_of
from server.api.http.group_commit import answer_or_error, served_together
from server.api.http.path_params import AttemptId, OperationId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.api.http.worker_protocol import check_protocol
from server.cluster.nodes.register import check_sender
from server.cluster.nodes.register import register as register_node
from server.cluster.supply.joining import register_pilot, store_check
from server.core.context import Context
from server.core.errors import RefusalError
from server.jobs.attempts.claim import claim_all
from server.jobs.attempts.node_heartbeat import node_heartbeat, node_heartbeats
from server.jobs.attempts.reports import AcceptedShares, ReportedShare, authenticate_shares
from server.jobs.checkpoints.catalog import apply_outcome
from server.jobs.jobs.queries import ended_or_unknown
from server.jobs.operations.service import claim_operation, report_operation
from server.telemetry.ingest.receive import SentReport, store_report, store_together
from server.telemetry.metrics.lineage_values import measure
from trainyard.protocol.node_sources.messages import CheckReport
from trainyard.protocol.worker_messages import (
    OLDEST_REPORTS,
    Claim,
    ClaimReply,
    EndedJobsReply,
    EndedJobsRequest,
    NodeHeartbeat,
    NodeHeartbeatReply,
    OperationClaimReply,
    OperationReport,
    OperationReportReply,
    Registration,
    RegistrationReply,
    Report,
    ReportReply,
)

router = APIRouter(prefix="/workers", tags=["workers"])

HEARTBEATS_GATHER_SECONDS = 0.02
"""Pause in which heartbeats are gathered, in seconds. One transaction with four heartbeats costs
less than half as much as four transactions, and the pause blocks no worker.
"""


@router.post("/register", response_model=RegistrationReply, summary="Registration of a node")
def register(
    context: ServerContext,
    request: Request,
    principal: Joiner,
    body: Annotated[Registration, Depends(JsonBody(Registration))],
) -> Response:
    """Register a node with a join token or a pilot's secret, or again with its own token."""
    if body.pilot is None and principal.pilot is None:
        registered = register_node(context, body, principal=principal)
    else:
        registered = register_pilot(context, body, principal=principal, host=_host(request))
    return reply(registered)


@router.post("/check", status_code=204, summary="Findings of a check of a source")
def check(
    context: ServerContext,
    request: Request,
    principal: Pilot,
    body: Annotated[CheckReport, Depends(JsonBody(CheckReport))],
) -> None:
    """Store the results of a source's check; only the first report of a pilot counts."""
    check_protocol(body.protocol)
    store_check(context, body, principal=principal, host=_host(request))


@router.post("/heartbeat", response_model=NodeHeartbeatReply, summary="Heartbeat of a worker")
async def heartbeat(
    context: ServerContext,
    request: Request,
    principal: Node,
    body: Annotated[NodeHeartbeat, Depends(JsonBody(NodeHeartbeat))],
) -> Response:
    """Keep a node online, end each share that has no processes left, and return the work to run."""
    check_sender(principal, body.node, body.protocol)
    if body.gone:
        answer = await run_in_threadpool(node_heartbeat, context, body)
    else:
        answer = await served_together(
            request, node_heartbeats, body, key=body.node, gather_seconds=HEARTBEATS_GATHER_SECONDS
        )
    return reply(answer)


@router.post("/ended-jobs", response_model=EndedJobsReply, summary="Jobs that have ended")
def ended_jobs(
    context: ServerContext,
    principal: Node,
    body: Annotated[EndedJobsRequest, Depends(JsonBody(EndedJobsRequest))],
) -> Response:
    """Return the given jobs that have ended or are unknown.

    The node deletes the run directories of these jobs.
    """
    check_sender(principal, body.node, body.protocol)
    return reply(EndedJobsReply(ended=ended_or_unknown(context, body.jobs)))


@router.post(
    "/attempts/{attempt_id}/claim",
    response_model=ClaimReply,
    summary="Claim of a node's share of an attempt",
)
async def claim(
    request: Request,
    principal: Node,
    attempt_id: AttemptId,
    body: Annotated[Claim, Depends(JsonBody(Claim))],
) -> Response:
    """Return spec, attempt and token to the first claim of a share, and to its repeats.

    Any other claim gets 409.
    """
    check_sender(principal, body.node, body.protocol)
    return await served_together(request, _claimed, (attempt_id, body), key=attempt_id)


def _claimed(context: Context, sent: Sequence[tuple[str, Claim]]) -> list[Response | Exception]:
    return [
        answer if isinstance(answer, RefusalError) else answer_or_error(partial(reply, answer))
        for answer in claim_all(context, sent)
    ]


def _host(request: Request) -> str:
    return request.client.host if request.client else ""


async def _share(
    request: Request, attempt_id: AttemptId, token_hash: AttemptTokenHash
) -> ReportedShare:
    key = (attempt_id, token_hash)
    share = _accepted_shares(request).take(key)
    if share is None:
        share = await served_together(request, authenticate_shares, key)
    return share


def _accepted_shares(request: Request) -> AcceptedShares:
    shares = request.app.state.accepted_shares
    assert isinstance(shares, AcceptedShares)
    return shares


@router.post(
    "/attempts/{attempt_id}/report", response_model=ReportReply, summary="Report of a supervisor"
)
async def report(
    request: Request,
    share: Annotated[ReportedShare, Depends(_share)],
    report: Annotated[Report, Depends(JsonBody(Report))],
) -> Response:
    """Store the new bytes of a run directory, each once, and return orders."""
    sent, answer = SentReport(share, report), None
    if sent.may_share:
        answer = await served_together(request, store_together, sent, key=share.job_id)
    if answer is None:  # in another thread, so that the responses of the group do not wait for it
        answer = await run_in_threadpool(store_report, context_of(request), share, report)
    _accepted_shares(request).keep(share, answer.acknowledged)
    return reply(answer)


@router.post(
    "/operations/{operation_id}/claim",
    response_model=OperationClaimReply,
    summary="Claim of an operation",
)
def claim_an_operation(
    context: ServerContext,
    principal: Node,
    operation_id: OperationId,
    body: Annotated[Claim, Depends(JsonBody(Claim))],
) -> Response:
    """Return the task and the fence to the first claim; a later claim gets 409."""
    check_sender(principal, body.node, body.protocol)
    return reply(claim_operation(context, operation_id, node=body.node, worker=body.worker))


@router.post(
    "/operations/{operation_id}/report",
    response_model=OperationReportReply,
    summary="Progress and outcome of an operation",
)
def report_on_an_operation(
    context: ServerContext,
    principal: Node,
    operation_id: OperationId,
    body: Annotated[OperationReport, Depends(JsonBody(OperationReport))],
) -> Response:
    """Store progress and outcome of an operation, and renew its lease.

    Return 409 if the node has lost the operation to a later claim.
    """
    check_sender(principal, body.node, body.protocol, oldest=OLDEST_REPORTS)
    apply = partial(apply_outcome, measure=measure)
    return reply(report_operation(context, operation_id, body, apply=apply))
