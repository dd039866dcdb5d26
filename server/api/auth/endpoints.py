"""`/tokens`: tokens of people, programs and nodes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from server.api.auth import service
from server.api.auth.dependencies import OwnUser
from server.api.auth.permissions import known
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import TokenId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from trainyard.protocol.rest.access import Permission, TokenRequest, TokenView
from trainyard.protocol.rest.common import Page

router = APIRouter(tags=["access"])

TokenBody = Annotated[TokenRequest, Depends(JsonBody(TokenRequest))]


@router.post("/tokens", status_code=201, response_model=TokenView, summary="Create a token")
def create(context: ServerContext, principal: OwnUser, body: TokenBody) -> Response:
    """Create a token of the caller. Only this response contains the secret of the token.

    A join token needs `tokens:admin`, and only the admin token creates login codes.
    """
    row, token = service.create_token(context, body, actor=principal.actor)
    return reply(token_view(row, secret=token), status=201)


@router.get("/tokens", response_model=Page[TokenView], summary="Tokens that are not revoked")
def list_(
    context: ServerContext,
    principal: OwnUser,
    page: Annotated[PageRequest[str], Depends(page_by("tokens", str))],
    every: Annotated[
        bool,
        Query(alias="all", description="The tokens of all users and machines. Needs tokens:admin."),
    ] = False,
) -> Response:
    """List the caller's tokens without their secrets, the newest first."""
    actor = principal.actor
    if every and not actor.may(Permission.TOKENS_ADMIN):
        raise actor.refusal(Permission.TOKENS_ADMIN)
    user_id = None if every else actor.owner_id
    rows = service.list_tokens(context, after=page.after, limit=page.limit, user_id=user_id)
    shown, next_page_token = page.cut(rows, lambda row: row.id)
    views = tuple(token_view(row) for row in shown)
    return reply(Page[TokenView](items=views, next_page_token=next_page_token))


@router.delete("/tokens/{token_id}", status_code=204, summary="Revoke a token")
def revoke(context: ServerContext, principal: OwnUser, token_id: TokenId) -> None:
    """Revoke a token, and end its browser sessions and its commands in running attempts.

    The tokens of other users and of machines need `tokens:admin`.
    """
    service.revoke_token(context, token_id, actor=principal.actor)


def token_view(row: service.ListedToken, *, secret: str | None = None) -> TokenView:
    """Return the view of a token."""
    scopes = None if row.scopes is None else known(row.scopes)
    return TokenView(**row.values_for(TokenView) | {"scopes": scopes}, secret=secret)
