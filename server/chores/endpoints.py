"""`/checkpoints/{id}/...` and `/chores`: act on checkpoints, and look at what is being done."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from server.auth.dependencies import Person, person
from server.checkpoints.catalog import read_checkpoint
from server.chores import cancelling, service, uses
from server.chores.queue import list_chores, read_chore
from server.context import Context
from server.http.dependencies import ServerContext
from server.http.paging import PageRequest, page_by
from server.http.path_params import CHECKPOINT_ID, CheckpointId, ChoreId
from server.http.request_body import JsonBody
from server.http.responses import reply
from trainyard.base.ids import ID_PATTERN
from trainyard.protocol.rest.chores import ChoreView, ExportRequest, SampleRequest
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.telemetry import CheckpointDetails

ExportBody = Annotated[ExportRequest, Depends(JsonBody(ExportRequest, default=ExportRequest()))]
SampleBody = Annotated[SampleRequest, Depends(JsonBody(SampleRequest, default=SampleRequest()))]

router = APIRouter(dependencies=[person])


@router.post(
    "/checkpoints/{checkpoint_id}/verify",
    status_code=202,
    response_model=ChoreView,
    tags=["checkpoints"],
    summary="Compare a checkpoint with its checksums, and load it",
)
def verify(context: ServerContext, principal: Person, checkpoint_id: CheckpointId) -> Response:
    """Queue a verification on a node; a repeat answers with the one that is open."""
    return _accepted(context, service.verify(context, checkpoint_id, actor=principal.actor))


@router.post(
    "/checkpoints/{checkpoint_id}/export",
    status_code=202,
    response_model=ChoreView,
    tags=["checkpoints"],
    summary="Write a checkpoint's weights as Hugging Face's libraries read them",
)
def export(
    context: ServerContext, principal: Person, checkpoint_id: CheckpointId, body: ExportBody
) -> Response:
    """Queue an export to a folder on storage; the same again answers with the one that is open."""
    return _accepted(context, uses.export(context, checkpoint_id, body, actor=principal.actor))


@router.post(
    "/checkpoints/{checkpoint_id}/sample",
    status_code=202,
    response_model=ChoreView,
    tags=["checkpoints"],
    summary="Draw a text from a checkpoint",
)
def sample(
    context: ServerContext, principal: Person, checkpoint_id: CheckpointId, body: SampleBody
) -> Response:
    """Queue a text to be drawn on a node; the chore's outcome carries it."""
    return _accepted(context, uses.sample(context, checkpoint_id, body, actor=principal.actor))


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
    response_model=ChoreView,
    tags=["checkpoints"],
    summary="Delete a checkpoint from storage",
)
def delete(context: ServerContext, principal: Person, checkpoint_id: CheckpointId) -> Response:
    """Mark a checkpoint and queue its deletion; 409 says what speaks against it."""
    return _accepted(context, service.delete(context, checkpoint_id, actor=principal.actor))


@router.get(
    "/chores",
    response_model=Page[ChoreView],
    tags=["chores"],
    summary="What is done to checkpoints, the newest first",
)
def list_(
    context: ServerContext,
    page: Annotated[PageRequest[str], Depends(page_by("chores", str))],
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
    """List chores, those of deleted jobs too."""
    with context.database.read() as connection:
        views = list_chores(
            connection,
            job_id=job,
            checkpoint_id=checkpoint,
            open_only=open_only,
            before=page.after,
            limit=page.limit,
        )
    shown, next_page_token = page.cut(views, lambda view: view.id)
    return reply(Page[ChoreView](items=tuple(shown), next_page_token=next_page_token))


@router.get("/chores/{chore_id}", response_model=ChoreView, tags=["chores"], summary="One chore")
def get(context: ServerContext, chore_id: ChoreId) -> Response:
    """Return how far a chore is, and how it ended."""
    with context.database.read() as connection:
        return reply(read_chore(connection, chore_id))


@router.post(
    "/chores/{chore_id}/cancel",
    response_model=ChoreView,
    tags=["chores"],
    summary="Take a chore back",
)
def cancel(context: ServerContext, principal: Person, chore_id: ChoreId) -> Response:
    """End a chore: at once where it waits, else with its node's next report; 409 says why not."""
    cancelling.cancel(context, chore_id, actor=principal.actor)
    with context.database.read() as connection:
        return reply(read_chore(connection, chore_id))


def _accepted(context: Context, chore_id: str) -> Response:
    with context.database.read() as connection:
        view = read_chore(connection, chore_id)
    return reply(view, status=202, headers={"location": f"/api/v1/chores/{chore_id}"})
