"""`/jobs/{id}/goodput`: the time of a job by category."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.auth.dependencies import person
from server.goodput.queries import goodput_view
from server.http.dependencies import ServerContext
from server.http.path_params import JobId
from server.http.responses import reply
from trainyard.protocol.goodput import GoodputView

router = APIRouter(tags=["goodput"], dependencies=[person])


@router.get("/jobs/{job_id}/goodput", response_model=GoodputView, summary="The goodput of a job")
def goodput(context: ServerContext, job_id: JobId) -> Response:
    """Return the wall time of a job by category; the categories sum to it to the millisecond."""
    return reply(goodput_view(context, job_id))
