"""`/projects/{name}/members`, `/limits` and `/service-accounts`: roles and limits in a project."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from server.api.accounts.service_accounts import list_accounts
from server.api.auth.dependencies import may
from server.api.auth.endpoints import token_view
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import ProjectName, TokenId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.cluster.membership import account_tokens, queries, service
from server.cluster.membership.limit_users import limit_users
from trainyard.base.names import MEMBER_NAME
from trainyard.protocol.rest.access import Permission, TokenView
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.projects import ProjectView
from trainyard.protocol.user_accounts.members import (
    EveryoneRequest,
    MemberRequest,
    MemberView,
    ServiceAccountRequest,
    ServiceAccountView,
    ServiceTokenRequest,
    UserLimits,
)
from trainyard.protocol.user_accounts.single_sign_on import GROUP_NAME, GroupRequest, GroupView

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]
MembersWrite = Annotated[Principal, may(Permission.MEMBERS_WRITE)]
MemberName = Annotated[str, Path(pattern=MEMBER_NAME, description="Name of the user.")]

router = APIRouter(prefix="/projects/{name}", tags=["members"])


@router.get("/members", response_model=Page[MemberView], summary="The members of a project")
def list_(
    context: ServerContext,
    principal: JobsRead,
    name: ProjectName,
    page: Annotated[PageRequest[str], Depends(page_by("members", str, MEMBER_NAME))],
) -> Response:
    """List the members by name; persons with the role of everyone alone are omitted."""
    views = queries.list_members(
        context, name, scope=principal.scope, after=page.after, limit=page.limit
    )
    shown, next_page_token = page.cut(views, lambda view: view.user)
    return reply(Page[MemberView](items=tuple(shown), next_page_token=next_page_token))


@router.put("/members/{user}", response_model=MemberView, summary="Give a user a role")
def put(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    user: MemberName,
    body: Annotated[MemberRequest, Depends(JsonBody(MemberRequest))],
) -> Response:
    """Add a member, or change the member's role and own limits; absent limits stay."""
    view = service.set_member(context, name, user, request=body, actor=principal.actor)
    return reply(view)


@router.delete("/members/{user}", status_code=204, summary="Remove a member")
def remove(
    context: ServerContext, principal: MembersWrite, name: ProjectName, user: MemberName
) -> None:
    """End the membership of a user; open commands end, and streams drop the project's events."""
    service.remove_member(context, name, user, actor=principal.actor)


@router.put("/everyone", response_model=ProjectView, summary="Give every person a role")
def put_everyone(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    body: Annotated[EveryoneRequest, Depends(JsonBody(EveryoneRequest))],
) -> Response:
    """Set the role that every active person has in the project; null takes it away."""
    return reply(service.set_everyone(context, name, role=body.role, actor=principal.actor))


@router.patch("/limits", response_model=ProjectView, summary="Limit each user of a project")
def patch_limits(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    body: Annotated[UserLimits, Depends(JsonBody(UserLimits))],
) -> Response:
    """Change the limits of each user without own limits; absent ones stay, null removes one."""
    return reply(limit_users(context, name, body, actor=principal.actor))


@router.get(
    "/groups",
    response_model=Page[GroupView],
    summary="The issuer's groups with a role in a project",
)
def list_groups(
    context: ServerContext,
    principal: JobsRead,
    name: ProjectName,
    page: Annotated[PageRequest[str], Depends(page_by("groups", str, GROUP_NAME))],
) -> Response:
    """List the groups by name. Their persons have the role while the issuer confirms the group."""
    views = queries.list_groups(
        context, name, scope=principal.scope, after=page.after, limit=page.limit
    )
    shown, next_page_token = page.cut(views, lambda view: view.group)
    return reply(Page[GroupView](items=tuple(shown), next_page_token=next_page_token))


@router.put("/groups", status_code=204, summary="Give a group of the issuer a role")
def put_group(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    body: Annotated[GroupRequest, Depends(JsonBody(GroupRequest))],
) -> None:
    """Give the persons of a group a role in the project; null takes it away.

    The name is in the body, because names of groups may contain slashes.
    """
    service.set_group(context, name, body.group, role=body.role, actor=principal.actor)


@router.get(
    "/service-accounts",
    response_model=Page[ServiceAccountView],
    summary="The service accounts of a project",
)
def list_service_accounts(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    page: Annotated[PageRequest[str], Depends(page_by("service-accounts", str, MEMBER_NAME))],
) -> Response:
    """List the active service accounts by name."""
    views = list_accounts(context, name, scope=principal.scope, after=page.after, limit=page.limit)
    shown, next_page_token = page.cut(views, lambda view: view.name)
    return reply(Page[ServiceAccountView](items=tuple(shown), next_page_token=next_page_token))


@router.post(
    "/service-accounts",
    status_code=201,
    response_model=ServiceAccountView,
    summary="Create a service account",
)
def create_service_account(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    body: Annotated[ServiceAccountRequest, Depends(JsonBody(ServiceAccountRequest))],
) -> Response:
    """Create a user without a password that has a role in this project alone."""
    view = service.add_service_account(context, name, request=body, actor=principal.actor)
    return reply(view, status=201)


@router.delete("/service-accounts/{user}", status_code=204, summary="End a service account")
def remove_service_account(
    context: ServerContext, principal: MembersWrite, name: ProjectName, user: MemberName
) -> None:
    """End a service account for good, with its tokens; its jobs continue."""
    service.remove_service_account(context, name, user, actor=principal.actor)


@router.post(
    "/service-accounts/{user}/tokens",
    status_code=201,
    response_model=TokenView,
    summary="Create a token of a service account",
)
def create_token(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    user: MemberName,
    body: Annotated[ServiceTokenRequest, Depends(JsonBody(ServiceTokenRequest))],
) -> Response:
    """Create a token with at most the caller's permissions. Only this response has the secret."""
    row, secret = account_tokens.create_account_token(
        context, name, user, request=body, actor=principal.actor
    )
    return reply(token_view(row, secret=secret), status=201)


@router.get(
    "/service-accounts/{user}/tokens",
    response_model=Page[TokenView],
    summary="The tokens of a service account",
)
def list_tokens(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    user: MemberName,
    page: Annotated[PageRequest[str], Depends(page_by("service-account-tokens", str))],
) -> Response:
    """List the tokens that are not revoked, without their secrets, the newest first."""
    rows = account_tokens.list_account_tokens(
        context, name, user, scope=principal.scope, after=page.after, limit=page.limit
    )
    shown, next_page_token = page.cut(rows, lambda row: row.id)
    views = tuple(token_view(row) for row in shown)
    return reply(Page[TokenView](items=views, next_page_token=next_page_token))


@router.delete(
    "/service-accounts/{user}/tokens/{token_id}",
    status_code=204,
    summary="Revoke a token of a service account",
)
def revoke_token(
    context: ServerContext,
    principal: MembersWrite,
    name: ProjectName,
    user: MemberName,
    token_id: TokenId,
) -> None:
    """Revoke a token; the commands that it opened in running attempts end."""
    account_tokens.revoke_account_token(
        context, name, user, token_id=token_id, actor=principal.actor
    )
