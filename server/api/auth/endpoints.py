"""`/auth/session` and `/tokens`: browser logins, and tokens for people, programs and nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response

from server.api.auth import service
from server.api.auth.dependencies import (
    Cookie,
    Person,
    check_origin,
    cookie_name,
    may,
    person,
    public,
)
from server.api.auth.permissions import known
from server.api.auth.throttle import check_logins, note_failed_login
from server.api.auth.tokens import TokenKind
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import TokenId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.core.database.rows import Token
from server.core.errors import UnauthenticatedError
from trainyard.protocol.rest.access import (
    Permission,
    SessionRequest,
    SessionView,
    TokenRequest,
    TokenView,
)
from trainyard.protocol.rest.common import Page

router = APIRouter(tags=["access"])

SESSION_PATH = "/auth/session"
SessionBody = Annotated[SessionRequest, Depends(JsonBody(SessionRequest, default=SessionRequest()))]
TokenBody = Annotated[TokenRequest, Depends(JsonBody(TokenRequest))]


@router.post(
    SESSION_PATH,
    dependencies=[public],
    status_code=201,
    response_model=SessionView,
    summary="Log a browser in",
)
def log_in(context: ServerContext, request: Request, body: SessionBody) -> Response:
    """Open a browser session with a token, or with the one-time code of a login link.

    The reply sets an HttpOnly cookie. The endpoint needs no authorization. After too many failed
    logins from one address it returns 429.
    """
    if "origin" in request.headers:  # another site must not log a browser in
        check_origin(context, request)
    host = request.client.host if request.client else ""
    check_logins(context, host)
    try:
        session = service.open_session(context, token=body.token, code=body.code)
    except UnauthenticatedError:
        note_failed_login(context, host)
        raise
    response = reply(_session_view(session.principal, session.expires_at), status=201)
    response.set_cookie(
        cookie_name(context),
        session.cookie,
        max_age=int((session.expires_at - context.now()).total_seconds()),
        httponly=True,
        samesite="strict",
        secure=context.settings.is_https,
    )
    return response


@router.get(SESSION_PATH, response_model=SessionView, summary="Who is logged in")
def who(context: ServerContext, principal: Person, cookie: Cookie, request: Request) -> Response:
    """Return the principal of the request's session or token."""
    if "authorization" in request.headers or cookie is None:
        return reply(_session_view(principal, None))
    return reply(_session_view(*service.authenticate_session(context, cookie)))


@router.delete(SESSION_PATH, dependencies=[person], status_code=204, summary="Log a browser out")
def log_out(context: ServerContext, cookie: Cookie) -> Response:
    """End the browser session of the cookie, if the request has a cookie."""
    if cookie is not None:
        service.close_session(context, cookie)
    response = Response(status_code=204)
    response.delete_cookie(
        cookie_name(context), httponly=True, samesite="strict", secure=context.settings.is_https
    )
    return response


@router.post("/tokens", status_code=201, response_model=TokenView, summary="Create a token")
def create(
    context: ServerContext,
    principal: Annotated[service.Principal, may(Permission.TOKENS_ADMIN)],
    body: TokenBody,
) -> Response:
    """Create a token. Only this response contains the secret of the token."""
    row, token = service.create_token(context, body, actor=principal.actor)
    return reply(_token_view(row, secret=token), status=201)


@router.get(
    "/tokens",
    dependencies=[may(Permission.TOKENS_ADMIN)],
    response_model=Page[TokenView],
    summary="Tokens that are not revoked",
)
def list_(
    context: ServerContext, page: Annotated[PageRequest[str], Depends(page_by("tokens", str))]
) -> Response:
    """List tokens without their secrets, the newest first."""
    rows = service.list_tokens(context, after=page.after, limit=page.limit)
    shown, next_page_token = page.cut(rows, lambda row: row.id)
    views = tuple(_token_view(row) for row in shown)
    return reply(Page[TokenView](items=views, next_page_token=next_page_token))


@router.delete(
    "/tokens/{token_id}",
    dependencies=[may(Permission.TOKENS_ADMIN)],
    status_code=204,
    summary="Revoke a token",
)
def revoke(context: ServerContext, token_id: TokenId) -> None:
    """Revoke a token, and end its browser sessions and its commands in running attempts."""
    service.revoke_token(context, token_id)


def _session_view(principal: service.Principal, expires_at: datetime | None) -> SessionView:
    kind: Literal["admin", "api"] = "admin" if principal.kind is TokenKind.ADMIN else "api"
    return SessionView(
        name=principal.name,
        kind=kind,
        permissions=known(principal.permissions),
        expires_at=expires_at,
    )


def _token_view(row: Token, *, secret: str | None = None) -> TokenView:
    scopes = None if row.scopes is None else known(row.scopes)
    return TokenView(**row.values_for(TokenView) | {"scopes": scopes}, secret=secret)
