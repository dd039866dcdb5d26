"""`/jobs/{id}/advice`: what slows a job."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.api.auth.dependencies import may
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import JobId
from server.api.http.responses import reply
from server.telemetry.advice.observed import advice
from trainyard.protocol.goodput import AdviceView
from trainyard.protocol.rest.access import Permission

router = APIRouter(tags=["goodput"])


@router.get(
    "/jobs/{job_id}/advice",
    dependencies=[may(Permission.JOBS_READ)],
    response_model=AdviceView,
    summary="What slows a job",
)
def read_advice(context: ServerContext, job_id: JobId) -> Response:
    """Return findings on what slows a job, each with its evidence, remedy and gain."""
    return reply(advice(context, job_id))
