"""`/jobs/{id}/owner`: the transfer of a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import JobId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.jobs.jobs.queries import job_view
from server.jobs.owners.service import transfer
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.user_accounts.members import OwnerRequest

router = APIRouter(tags=["jobs"])


@router.post("/jobs/{job_id}/owner", response_model=JobView, summary="Give a job to another user")
def set_owner(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.MEMBERS_WRITE)],
    job_id: JobId,
    body: Annotated[OwnerRequest, Depends(JsonBody(OwnerRequest))],
) -> Response:
    """Change the owner, who may run commands in the job; own secrets do not follow."""
    transfer(context, job_id, body.owner, actor=principal.actor)
    return reply(job_view(context, job_id, scope=principal.scope))
