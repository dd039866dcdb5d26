"""`/operations`: background work on checkpoints, with its progress."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy import ColumnElement

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import CHECKPOINT_ID, OperationId
from server.api.http.responses import reply
from server.core.database.tables import operations
from server.jobs.operations.cancel import cancel as cancel_operation
from server.jobs.operations.queries import ARE_OPEN, list_operations, read_operation
from trainyard.base.ids import ID_PATTERN
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.checkpoints import OperationView
from trainyard.protocol.rest.common import Page

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter()


@router.get(
    "/operations",
    response_model=Page[OperationView],
    tags=["operations"],
    summary="Operations on checkpoints, the newest first",
)
def list_(
    context: ServerContext,
    principal: JobsRead,
    page: Annotated[PageRequest[str], Depends(page_by("operations", str))],
    job: Annotated[
        str | None, Query(pattern=ID_PATTERN, description="For the checkpoints of this job.")
    ] = None,
    checkpoint: Annotated[
        str | None, Query(pattern=CHECKPOINT_ID, description="For this checkpoint.")
    ] = None,
    open_only: Annotated[
        bool, Query(alias="open", description="Only operations that have not ended.")
    ] = False,
) -> Response:
    """List operations, including operations of deleted jobs."""
    columns = operations.c
    where: list[ColumnElement[bool]] = [ARE_OPEN] if open_only else []
    where += [columns.job_id == job] if job is not None else []
    where += [columns.checkpoint_id == checkpoint] if checkpoint is not None else []
    where += [columns.id < page.after] if page.after is not None else []
    with context.database.read() as connection:
        views = list_operations(connection, *where, scope=principal.scope, limit=page.limit)
    shown, next_page_token = page.cut(views, lambda view: view.id)
    return reply(Page[OperationView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/operations/{operation_id}",
    response_model=OperationView,
    tags=["operations"],
    summary="One operation",
)
def get(context: ServerContext, principal: JobsRead, operation_id: OperationId) -> Response:
    """Return the state, progress and outcome of an operation."""
    with context.database.read() as connection:
        return reply(read_operation(connection, operation_id, scope=principal.scope))


@router.post(
    "/operations/{operation_id}/cancel",
    response_model=OperationView,
    tags=["operations"],
    summary="Cancel an operation",
)
def cancel(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.JOBS_WRITE)],
    operation_id: OperationId,
) -> Response:
    """Cancel a queued operation immediately, or a running operation at its next report.

    The response is a 409 if the operation has ended, if it deletes the checkpoints of a deleted
    job, or if files may already be deleted.
    """
    cancel_operation(context, operation_id, actor=principal.actor)
    return get(context, principal, operation_id)
