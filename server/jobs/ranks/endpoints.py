"""`/jobs/{id}/ranks`: comparison between the ranks of a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import JobId
from server.api.http.responses import reply
from server.jobs.ranks.store import read_ranks
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.metrics_and_logs import RanksView

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter(tags=["metrics"])


@router.get(
    "/jobs/{job_id}/ranks",
    response_model=RanksView,
    summary="The ranks of a job",
)
def ranks(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
) -> Response:
    """Return the time use of the newest attempt's ranks in the last window, and the stragglers."""
    return reply(read_ranks(context, job_id, scope=principal.scope))
