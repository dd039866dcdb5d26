"""`/facts/compare`: configuration and summary of several jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.query import ComparedJobs
from server.api.http.responses import reply
from server.jobs.facts.compare import compare_facts
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.metrics_and_logs import FactsComparison

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter(tags=["metrics"])


@router.get(
    "/facts/compare",
    response_model=FactsComparison,
    summary="Configuration and summary of several jobs",
)
def compare(
    context: ServerContext,
    principal: JobsRead,
    jobs: ComparedJobs,
) -> Response:
    """Return the values of configuration and summary that differ between the jobs."""
    return reply(compare_facts(context, jobs.split(","), scope=principal.scope))
