"""`/checkpoints/{id}/...` and `/operations`: act on checkpoints, and look at what is being done."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from server.auth.dependencies import Person, person
from server.checkpoints.catalog import read_checkpoint
from server.context import Context
from server.http.dependencies import ServerContext
from server.http.paging import PageRequest, page_by
from server.http.path_params import CHECKPOINT_ID, CheckpointId, OperationId
from server.http.request_body import JsonBody
from server.http.responses import reply
from server.operations import exports, service
from server.operations.cancel import cancel as cancel_operation
from server.operations.store import list_operations, read_operation
from trainyard.base.ids import ID_PATTERN
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.operations import ExportRequest, OperationView, SampleRequest
from trainyard.protocol.rest.telemetry import CheckpointDetails

ExportBody = Annotated[ExportRequest, Depends(JsonBody(ExportRequest, default=ExportRequest()))]
SampleBody = Annotated[SampleRequest, Depends(JsonBody(SampleRequest, default=SampleRequest()))]

router = APIRouter(dependencies=[person])


@router.post(
    "/checkpoints/{checkpoint_id}/verify",
    status_code=202,
    response_model=OperationView,
    tags=["checkpoints"],
    summary="Compare a checkpoint with its checksums, and load it",
)
def verify(context: ServerContext, principal: Person, checkpoint_id: CheckpointId) -> Response:
    """Queue a verification on a node; a repeat answers with the one that is open."""
    return _accepted(context, service.verify(context, checkpoint_id, actor=principal.actor))


@router.post(
    "/checkpoints/{checkpoint_id}/export",
    status_code=202,
    response_model=OperationView,
    tags=["checkpoints"],
    summary="Write a checkpoint's weights as Hugging Face's libraries read them",
)
def export(
    context: ServerContext, principal: Person, checkpoint_id: CheckpointId, body: ExportBody
) -> Response:
    """Queue an export to a folder on storage; the same again answers with the one that is open."""
    return _accepted(context, exports.export(context, checkpoint_id, body, actor=principal.actor))


@router.post(
    "/checkpoints/{checkpoint_id}/sample",
    status_code=202,
    response_model=OperationView,
    tags=["checkpoints"],
    summary="Draw a text from a checkpoint",
)
def sample(
    context: ServerContext, principal: Person, checkpoint_id: CheckpointId, body: SampleBody
) -> Response:
    """Queue a text to be drawn on a node; the operation's outcome carries it."""
    return _accepted(context, exports.sample(context, checkpoint_id, body, actor=principal.actor))


@router.post(
    "/checkpoints/{checkpoint_id}/pin",
    response_model=CheckpointDetails,
    tags=["checkpoints"],
    summary="Keep a checkpoint whatever retention says",
)
def pin(context: ServerContext, principal: Person, checkpoint_id: CheckpointId) -> Response:
    """Keep a checkpoint until it is unpinned."""
    service.set_pin(context, checkpoint_id, pinned=True, actor=principal.actor)
    return reply(read_checkpoint(context, checkpoint_id))


@router.post(
    "/checkpoints/{checkpoint_id}/unpin",
    response_model=CheckpointDetails,
    tags=["checkpoints"],
    summary="Leave a checkpoint to retention again",
)
def unpin(context: ServerContext, principal: Person, checkpoint_id: CheckpointId) -> Response:
    """Take a pin back."""
    service.set_pin(context, checkpoint_id, pinned=False, actor=principal.actor)
    return reply(read_checkpoint(context, checkpoint_id))


@router.delete(
    "/checkpoints/{checkpoint_id}",
    status_code=202,
    response_model=OperationView,
    tags=["checkpoints"],
    summary="Delete a checkpoint from storage",
)
def delete(context: ServerContext, principal: Person, checkpoint_id: CheckpointId) -> Response:
    """Mark a checkpoint and queue its deletion; 409 says what speaks against it."""
    return _accepted(context, service.delete(context, checkpoint_id, actor=principal.actor))


@router.get(
    "/operations",
    response_model=Page[OperationView],
    tags=["operations"],
    summary="What is done to checkpoints, the newest first",
)
def list_(
    context: ServerContext,
    page: Annotated[PageRequest[str], Depends(page_by("operations", str))],
    job: Annotated[
        str | None, Query(pattern=ID_PATTERN, description="For the checkpoints of this job.")
    ] = None,
    checkpoint: Annotated[
        str | None, Query(pattern=CHECKPOINT_ID, description="For this checkpoint.")
    ] = None,
    open_only: Annotated[
        bool, Query(alias="open", description="Only those that have not ended.")
    ] = False,
) -> Response:
    """List operations, those of deleted jobs too."""
    with context.database.read() as connection:
        views = list_operations(
            connection,
            job_id=job,
            checkpoint_id=checkpoint,
            open_only=open_only,
            before=page.after,
            limit=page.limit,
        )
    shown, next_page_token = page.cut(views, lambda view: view.id)
    return reply(Page[OperationView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/operations/{operation_id}",
    response_model=OperationView,
    tags=["operations"],
    summary="One operation",
)
def get(context: ServerContext, operation_id: OperationId) -> Response:
    """Return how far an operation is, and how it ended."""
    with context.database.read() as connection:
        return reply(read_operation(connection, operation_id))


@router.post(
    "/operations/{operation_id}/cancel",
    response_model=OperationView,
    tags=["operations"],
    summary="Take an operation back",
)
def cancel(context: ServerContext, principal: Person, operation_id: OperationId) -> Response:
    """End an operation: at once where it waits, else with its node's next report; else 409."""
    cancel_operation(context, operation_id, actor=principal.actor)
    with context.database.read() as connection:
        return reply(read_operation(connection, operation_id))


def _accepted(context: Context, operation_id: str) -> Response:
    with context.database.read() as connection:
        view = read_operation(connection, operation_id)
    return reply(view, status=202, headers={"location": f"/api/v1/operations/{operation_id}"})
