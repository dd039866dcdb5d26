"""`/jobs/{id}/advice`: what slows a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import JobId
from server.api.http.responses import reply
from server.telemetry.advice.observed import advice
from trainyard.protocol.goodput import AdviceView
from trainyard.protocol.rest.access import Permission

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter(tags=["goodput"])


@router.get(
    "/jobs/{job_id}/advice",
    response_model=AdviceView,
    summary="What slows a job",
)
def read_advice(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
) -> Response:
    """Return findings on what slows a job, each with its evidence, remedy and gain."""
    return reply(advice(context, job_id, scope=principal.scope))
