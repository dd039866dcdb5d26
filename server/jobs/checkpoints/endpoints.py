"""`/checkpoints` and `/jobs/{id}/checkpoints`: the catalog and its operations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import CHECKPOINT_ID, CheckpointId, JobId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.core.context import Context
from server.core.visibility.scope import Scope
from server.jobs.checkpoints import deletion, queries, service
from server.jobs.operations.queries import read_operation
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.checkpoints import (
    CheckpointDetails,
    CheckpointView,
    ExportRequest,
    OperationView,
    SampleRequest,
)
from trainyard.protocol.rest.common import Page

ExportBody = Annotated[ExportRequest, Depends(JsonBody(ExportRequest, default=ExportRequest()))]
SampleBody = Annotated[SampleRequest, Depends(JsonBody(SampleRequest, default=SampleRequest()))]

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]
JobsWrite = Annotated[Principal, may(Permission.JOBS_WRITE)]

router = APIRouter()


@router.get(
    "/jobs/{job_id}/checkpoints",
    response_model=Page[CheckpointView],
    tags=["checkpoints"],
    summary="The committed checkpoints of a job",
)
def list_checkpoints(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    page: Annotated[PageRequest[str], Depends(page_by("checkpoints", str, CHECKPOINT_ID))],
) -> Response:
    """List the checkpoints of a job, sorted by attempt and step, newest first."""
    views = queries.list_checkpoints(
        context, job_id, scope=principal.scope, after=page.after, limit=page.limit
    )
    shown, next_page_token = page.cut(views, lambda view: view.id)
    return reply(Page[CheckpointView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/checkpoints/{checkpoint_id}",
    response_model=CheckpointDetails,
    tags=["checkpoints"],
    summary="A checkpoint with its manifest",
)
def get_checkpoint(
    context: ServerContext, principal: JobsRead, checkpoint_id: CheckpointId
) -> Response:
    """Return a checkpoint with its manifest and the jobs that were forked from the checkpoint."""
    return reply(queries.read_checkpoint(context, checkpoint_id, scope=principal.scope))


@router.post(
    "/checkpoints/{checkpoint_id}/verify",
    status_code=202,
    response_model=OperationView,
    tags=["checkpoints"],
    summary="Compare a checkpoint with its checksums, and load it",
)
def verify(context: ServerContext, principal: JobsWrite, checkpoint_id: CheckpointId) -> Response:
    """Queue a verification on a node; a repeat returns the open operation."""
    operation_id = service.verify(context, checkpoint_id, actor=principal.actor)
    return _accepted(context, operation_id, scope=principal.scope)


@router.post(
    "/checkpoints/{checkpoint_id}/export",
    status_code=202,
    response_model=OperationView,
    tags=["checkpoints"],
    summary="Export a checkpoint's weights for Hugging Face's libraries",
)
def export(
    context: ServerContext, principal: JobsWrite, checkpoint_id: CheckpointId, body: ExportBody
) -> Response:
    """Queue an export to a folder on storage; a repeat returns the open operation."""
    operation_id = service.export(context, checkpoint_id, body, actor=principal.actor)
    return _accepted(context, operation_id, scope=principal.scope)


@router.post(
    "/checkpoints/{checkpoint_id}/sample",
    status_code=202,
    response_model=OperationView,
    tags=["checkpoints"],
    summary="Sample a text from a checkpoint",
)
def sample(
    context: ServerContext, principal: JobsWrite, checkpoint_id: CheckpointId, body: SampleBody
) -> Response:
    """Queue a sample on a node; the operation's outcome holds the text."""
    operation_id = service.sample(context, checkpoint_id, body, actor=principal.actor)
    return _accepted(context, operation_id, scope=principal.scope)


@router.post(
    "/checkpoints/{checkpoint_id}/pin",
    response_model=CheckpointDetails,
    tags=["checkpoints"],
    summary="Exempt a checkpoint from retention",
)
def pin(context: ServerContext, principal: JobsWrite, checkpoint_id: CheckpointId) -> Response:
    """Pin a checkpoint, so that retention keeps the checkpoint until the pin is removed."""
    service.set_pin(context, checkpoint_id, pinned=True, actor=principal.actor)
    return reply(queries.read_checkpoint(context, checkpoint_id, scope=principal.scope))


@router.post(
    "/checkpoints/{checkpoint_id}/unpin",
    response_model=CheckpointDetails,
    tags=["checkpoints"],
    summary="Return a checkpoint to retention",
)
def unpin(context: ServerContext, principal: JobsWrite, checkpoint_id: CheckpointId) -> Response:
    """Remove the pin of a checkpoint."""
    service.set_pin(context, checkpoint_id, pinned=False, actor=principal.actor)
    return reply(queries.read_checkpoint(context, checkpoint_id, scope=principal.scope))


@router.delete(
    "/checkpoints/{checkpoint_id}",
    status_code=202,
    response_model=OperationView,
    tags=["checkpoints"],
    summary="Delete a checkpoint from storage",
)
def delete(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.JOBS_DELETE)],
    checkpoint_id: CheckpointId,
) -> Response:
    """Queue the deletion of a checkpoint; a 409 names the guard that forbids the deletion."""
    operation_id = deletion.delete(context, checkpoint_id, actor=principal.actor)
    return _accepted(context, operation_id, scope=principal.scope)


def _accepted(context: Context, operation_id: str, *, scope: Scope) -> Response:
    with context.database.read() as connection:
        view = read_operation(connection, operation_id, scope=scope)
    return reply(view, status=202, headers={"location": f"/api/v1/operations/{operation_id}"})
