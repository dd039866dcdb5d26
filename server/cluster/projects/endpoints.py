"""`/projects`: the projects that share the cluster, with their weights and quotas."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import ProjectName
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.cluster.projects import queries, service
from trainyard.base.names import NAME
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings, ProjectView

NewProject = Annotated[ProjectRequest, Depends(JsonBody(ProjectRequest))]
Change = Annotated[ProjectSettings, Depends(JsonBody(ProjectSettings))]

ProjectsRead = Annotated[Principal, may(Permission.PROJECTS_READ)]

router = APIRouter(prefix="/projects", tags=["projects"])


@router.get(
    "",
    response_model=Page[ProjectView],
    summary="The projects",
)
def list_(
    context: ServerContext,
    principal: ProjectsRead,
    page: Annotated[PageRequest[str], Depends(page_by("projects", str, NAME))],
) -> Response:
    """List projects by name, with weight, quotas, held slots, used slot-hours and waiting jobs."""
    found = queries.list_projects(
        context, scope=principal.scope, after=page.after, limit=page.limit
    )
    shown, next_page_token = page.cut(found, lambda view: view.name)
    return reply(Page[ProjectView](items=tuple(shown), next_page_token=next_page_token))


@router.post("", status_code=201, response_model=ProjectView, summary="Create a project")
def create(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.PROJECTS_ADMIN)],
    body: NewProject,
) -> Response:
    """Create a project; 409 if a project with this name exists."""
    view = service.create_project(context, body, actor=principal.actor)
    return reply(view, status=201, headers={"location": f"/api/v1/projects/{view.name}"})


@router.get(
    "/{name}",
    response_model=ProjectView,
    summary="One project",
)
def get(context: ServerContext, principal: ProjectsRead, name: ProjectName) -> Response:
    """Return a project with its held slots, used slot-hours and waiting jobs."""
    return reply(queries.read_project(context, name, scope=principal.scope))


@router.patch("/{name}", response_model=ProjectView, summary="Change a project")
def change(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.PROJECTS_WRITE)],
    name: ProjectName,
    body: Change,
) -> Response:
    """Change the given settings; other settings stay, and null removes a quota."""
    return reply(service.change_project(context, name, body, actor=principal.actor))


@router.delete("/{name}", status_code=204, summary="Delete a project")
def delete(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.PROJECTS_ADMIN)],
    name: ProjectName,
) -> Response:
    """Delete a project; 409 for the default project, and for one with jobs, even ended ones."""
    service.delete_project(context, name, actor=principal.actor)
    return Response(status_code=204)
