"""`/users`: create, list, change and invite users."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from server.api.accounts import service
from server.api.accounts.invitations import NewInvitation
from server.api.accounts.queries import list_users, user_view
from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.core.context import Context
from trainyard.base.ids import ID_PATTERN
from trainyard.base.names import MEMBER_NAME
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.common import Page
from trainyard.protocol.user_accounts.views import InvitationView, UserChange, UserRequest, UserView

UsersAdmin = Annotated[Principal, may(Permission.USERS_ADMIN)]
UserId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the user.")]

router = APIRouter(tags=["users"])


@router.post("/users", status_code=201, response_model=InvitationView, summary="Create a user")
def create(
    context: ServerContext,
    request: Request,
    principal: UsersAdmin,
    body: Annotated[UserRequest, Depends(JsonBody(UserRequest))],
) -> Response:
    """Create a user, and an invitation with which the user sets a password within seven days.

    The user may have only permissions that the caller has. Only this response contains the code.
    """
    user, invitation = service.create_user(context, body, actor=principal.actor)
    view = _invitation_view(context, request, user=user, made=invitation)
    return reply(view, status=201, headers={"location": f"/api/v1/users/{user.id}"})


@router.get(
    "/users",
    dependencies=[may(Permission.USERS_ADMIN)],
    response_model=Page[UserView],
    summary="List users",
)
def list_(
    context: ServerContext,
    page: Annotated[PageRequest[str], Depends(page_by("users", str, MEMBER_NAME))],
    name: Annotated[
        str | None, Query(pattern=MEMBER_NAME, description="Only the user of this name.")
    ] = None,
) -> Response:
    """List users in the order of their names, disabled ones included."""
    views = list_users(context, after=page.after, limit=page.limit, name=name)
    shown, next_page_token = page.cut(views, lambda view: view.name)
    return reply(Page[UserView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/users/{user_id}",
    dependencies=[may(Permission.USERS_ADMIN)],
    response_model=UserView,
    summary="One user",
)
def get(context: ServerContext, user_id: UserId) -> Response:
    """Return a user."""
    with context.database.read() as connection:
        return reply(user_view(context, connection, user_id))


@router.patch("/users/{user_id}", response_model=UserView, summary="Change a user")
def change(
    context: ServerContext,
    principal: UsersAdmin,
    user_id: UserId,
    body: Annotated[UserChange, Depends(JsonBody(UserChange))],
) -> Response:
    """Change role, e-mail address, state or Unix account of a user.

    The caller needs all permissions of the user, before and after the change.

    A disabled user has no access; sessions, tokens, invitations and commands end for good.
    """
    return reply(service.change_user(context, user_id, body, actor=principal.actor))


@router.post(
    "/users/{user_id}/invitation",
    status_code=201,
    response_model=InvitationView,
    summary="Invite a user again, or reset the password",
)
def invite(
    context: ServerContext, request: Request, principal: UsersAdmin, user_id: UserId
) -> Response:
    """Make a new invitation, which ends earlier ones; a password stays until the code is used."""
    user, invitation = service.invite(context, user_id, actor=principal.actor)
    view = _invitation_view(context, request, user=user, made=invitation)
    return reply(view, status=201)


@router.delete("/users/{user_id}/identity", status_code=204, summary="Unlink a user")
def unlink(context: ServerContext, principal: UsersAdmin, user_id: UserId) -> None:
    """Remove the identity at the issuer; sessions, tokens and roles that came with it end."""
    service.unlink_user(context, user_id, actor=principal.actor)


def _invitation_view(
    context: Context, request: Request, *, user: UserView, made: NewInvitation
) -> InvitationView:
    base = context.settings.public_url or f"{request.url.scheme}://{request.url.netloc}"
    # Browsers send no fragment, so the code is in no log of a proxy.
    link = f"{base.rstrip('/')}/invitation#{made.code}"
    return InvitationView(user=user, code=made.code, link=link, expires_at=made.expires_at)
