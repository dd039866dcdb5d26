"""`/projects/{name}/secrets` and `/users/me/secrets`: values are stored, and never read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from server.api.auth.dependencies import OwnUser, may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import ProjectName
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.cluster.named_secrets import queries, service
from trainyard.base.names import NAME
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.common import Page
from trainyard.protocol.user_accounts.secret_views import SecretRequest, SecretView

SecretsUse = Annotated[Principal, may(Permission.SECRETS_USE)]
SecretsWrite = Annotated[Principal, may(Permission.SECRETS_WRITE)]
GivenName = Annotated[str, Path(pattern=NAME, max_length=80, description="Name of the secret.")]
NewName = Annotated[
    str,
    Path(
        max_length=500,
        description="Name of the secret: letters, digits, `.`, `_`, `-`; at most 80.",
    ),
]
"""A name that the service checks, so that an illegal one gets 422, with what is legal."""
GivenValue = Annotated[SecretRequest, Depends(JsonBody(SecretRequest))]
ByName = Annotated[PageRequest[str], Depends(page_by("secrets", str, NAME))]

router = APIRouter(tags=["secrets"])


@router.get(
    "/projects/{name}/secrets",
    response_model=Page[SecretView],
    summary="The secrets of a project, without values",
)
def list_(
    context: ServerContext, principal: SecretsUse, name: ProjectName, page: ByName
) -> Response:
    """List the secrets by name, with their versions and who stored them."""
    views = queries.list_project_secrets(
        context, name, scope=principal.scope, after=page.after, limit=page.limit
    )
    shown, next_page_token = page.cut(views, lambda view: view.name)
    return reply(Page[SecretView](items=tuple(shown), next_page_token=next_page_token))


@router.put(
    "/projects/{name}/secrets/{secret}",
    response_model=SecretView,
    summary="Store a version of a project's secret",
)
def put(
    context: ServerContext,
    principal: SecretsWrite,
    name: ProjectName,
    secret: NewName,
    body: GivenValue,
) -> Response:
    """Store a new version; later launches of jobs without a pinned version get it."""
    value = body.value.get_secret_value()
    view = service.put_project_secret(context, name, secret, value=value, actor=principal.actor)
    return reply(view)


@router.delete(
    "/projects/{name}/secrets/{secret}", status_code=204, summary="Delete a project's secret"
)
def remove(
    context: ServerContext, principal: SecretsWrite, name: ProjectName, secret: GivenName
) -> None:
    """Delete all versions; jobs that refer to the secret no longer start."""
    service.delete_project_secret(context, name, secret, actor=principal.actor)


@router.get(
    "/users/me/secrets",
    response_model=Page[SecretView],
    summary="The caller's own secrets, without values",
)
def list_own(context: ServerContext, principal: OwnUser, page: ByName) -> Response:
    """List the own secrets by name, with their versions."""
    views = queries.list_own_secrets(
        context, principal.actor.owner_id, after=page.after, limit=page.limit
    )
    shown, next_page_token = page.cut(views, lambda view: view.name)
    return reply(Page[SecretView](items=tuple(shown), next_page_token=next_page_token))


@router.put(
    "/users/me/secrets/{secret}",
    response_model=SecretView,
    summary="Store a version of an own secret",
)
def put_own(
    context: ServerContext, principal: OwnUser, secret: NewName, body: GivenValue
) -> Response:
    """Store a new version of a secret that only the caller's own jobs get."""
    value = body.value.get_secret_value()
    return reply(service.put_own_secret(context, secret, value=value, actor=principal.actor))


@router.delete("/users/me/secrets/{secret}", status_code=204, summary="Delete an own secret")
def remove_own(context: ServerContext, principal: OwnUser, secret: GivenName) -> None:
    """Delete all versions; jobs that refer to the secret no longer start."""
    service.delete_own_secret(context, secret, actor=principal.actor)
