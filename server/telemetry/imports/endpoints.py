"""`/imports`: imports of runs of other tools."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import JobId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.telemetry.imports import store
from trainyard.protocol.past_runs.views import ImportedPoints, ImportRequest, ImportView
from trainyard.protocol.rest.access import Permission

router = APIRouter(prefix="/imports", tags=["imports"])

JobsWrite = Annotated[Principal, may(Permission.JOBS_WRITE)]
Body = Annotated[ImportRequest, Depends(JsonBody(ImportRequest))]
PointsBody = Annotated[ImportedPoints, Depends(JsonBody(ImportedPoints))]


@router.post("", status_code=201, response_model=ImportView, summary="Import a run")
def start(context: ServerContext, principal: JobsWrite, body: Body) -> Response:
    """Store a run of another tool as an ended job; later requests add the run's points.

    A repeated request with the same content digest returns the same job. The response has the
    number of stored points.
    """
    view = store.start_import(context, body, actor=principal.actor)
    return reply(view, status=201, headers={"location": f"/api/v1/jobs/{view.job_id}"})


@router.post(
    "/{job_id}/points",
    response_model=ImportView,
    summary="Add points to an import",
)
def add(context: ServerContext, principal: JobsWrite, job_id: JobId, body: PointsBody) -> Response:
    """Store the next points; ignore a batch that starts with stored points; reject a gap."""
    return reply(store.add_points(context, job_id, body, actor=principal.actor))
