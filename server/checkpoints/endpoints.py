"""`/checkpoints` and `/jobs/{id}/checkpoints`: the catalog of what was committed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from server.auth.dependencies import person
from server.checkpoints import catalog
from server.http.dependencies import ServerContext
from server.http.paging import PageRequest, page_by
from server.http.path_params import CHECKPOINT_ID, CheckpointId, JobId
from server.http.responses import reply
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.telemetry import CheckpointDetails, CheckpointView

router = APIRouter(dependencies=[person])


@router.get(
    "/jobs/{job_id}/checkpoints",
    response_model=Page[CheckpointView],
    tags=["checkpoints"],
    summary="The committed checkpoints of a job",
)
def list_checkpoints(
    context: ServerContext,
    job_id: JobId,
    page: Annotated[PageRequest[str], Depends(page_by("checkpoints", str, CHECKPOINT_ID))],
) -> Response:
    """List checkpoints, the newest attempt and step first."""
    views = catalog.list_checkpoints(context, job_id, after=page.after, limit=page.limit)
    shown, next_page_token = page.cut(views, lambda view: view.id)
    return reply(Page[CheckpointView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/checkpoints/{checkpoint_id}",
    response_model=CheckpointDetails,
    tags=["checkpoints"],
    summary="A checkpoint with its manifest",
)
def get_checkpoint(context: ServerContext, checkpoint_id: CheckpointId) -> Response:
    """Return all that a checkpoint records of itself."""
    return reply(catalog.read_checkpoint(context, checkpoint_id))
