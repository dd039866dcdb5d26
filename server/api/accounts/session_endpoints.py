"""`/auth`: logins, browser sessions, passwords and invitations of the caller."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from server.api.accounts import logins
from server.api.accounts.guesses import checked
from server.api.accounts.invitations import accept_invitation, check_invitation
from server.api.accounts.passwords import check_password, holders_of, new_hash
from server.api.accounts.queries import is_shared, login_ways, session_user
from server.api.accounts.throttle import guess, of_address
from server.api.auth.browser_sessions import (
    Browser,
    NewSession,
    authenticate_session,
    close_session,
    end_own_session,
    list_sessions,
    open_session,
)
from server.api.auth.dependencies import (
    Cookie,
    OwnUser,
    Person,
    check_origin,
    check_whole,
    cookie_name,
    person,
    public,
)
from server.api.auth.endpoints import token_view
from server.api.auth.permissions import known
from server.api.auth.principals import Principal
from server.api.auth.tokens import TokenKind
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.core.context import Context
from server.core.errors import InvalidRequestError
from trainyard.base.ids import ID_PATTERN
from trainyard.protocol.rest.access import SessionRequest, SessionView, TokenView
from trainyard.protocol.rest.common import Page
from trainyard.protocol.user_accounts.views import (
    BrowserSession,
    InvitationAcceptance,
    InvitationCheck,
    InvitationCode,
    LoginWays,
    PasswordChange,
    PasswordLogin,
)

router = APIRouter(prefix="/auth", tags=["access"])

SessionBody = Annotated[SessionRequest, Depends(JsonBody(SessionRequest, default=SessionRequest()))]
SessionId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the session.")]


@router.get("/ways", dependencies=[public], response_model=LoginWays, summary="Ways to log in")
def ways(context: ServerContext) -> Response:
    """List the ways to log a browser in."""
    return reply(login_ways(context))


@router.post(
    "/session",
    dependencies=[public],
    status_code=201,
    response_model=SessionView,
    summary="Log a browser in",
)
async def log_in(context: ServerContext, request: Request, body: SessionBody) -> Response:
    """Open a browser session with a token, a one-time code of a login link, or name and password.

    The reply sets an HttpOnly cookie. The endpoint needs no authorization. After too many failed
    logins from one address or for one account it returns 429.
    """
    refuse_other_sites(context, request)
    _check_one_way(body)
    browser = browser_of(context, request)
    if body.name is not None and body.password is not None:
        account = await checked(context, body.name, body.password, host=host_of(request))
        session = await run_in_threadpool(
            logins.open_password_session, context, account, browser=browser
        )
    else:
        session = await run_in_threadpool(_open_by_secret, context, request, body)
    return await run_in_threadpool(_opened, context, session)


def _open_by_secret(context: Context, request: Request, body: SessionRequest) -> NewSession:
    with guess(context, of_address(host_of(request))):
        return open_session(
            context, token=body.token, code=body.code, browser=browser_of(context, request)
        )


def _check_one_way(body: SessionRequest) -> None:
    if (body.name is None) != (body.password is None):
        missing = "password" if body.password is None else "name"
        raise InvalidRequestError.at(f"/{missing}", "is missing: name and password go together")
    given = [each for each in ("token", "code", "name") if getattr(body, each) is not None]
    if len(given) > 1:
        raise InvalidRequestError.at(
            f"/{given[1]}", f"{' and '.join(given)} are given; legal: one way to log in"
        )


@router.get("/session", response_model=SessionView, summary="Who is logged in")
def who(context: ServerContext, principal: Person, cookie: Cookie, request: Request) -> Response:
    """Return the principal of the request's session or token, with its user."""
    if "authorization" in request.headers or cookie is None:
        return reply(_session_view(context, principal, None))
    return reply(_session_view(context, *authenticate_session(context, cookie)))


@router.delete("/session", dependencies=[person], status_code=204, summary="Log this browser out")
def log_out(context: ServerContext, cookie: Cookie) -> Response:
    """End the browser session of the cookie, if the request has a cookie."""
    if cookie is not None:
        close_session(context, cookie)
    response = Response(status_code=204)
    forget_cookie(context, response)
    return response


@router.get(
    "/sessions", response_model=Page[BrowserSession], summary="The caller's browser sessions"
)
def get_sessions(
    context: ServerContext,
    principal: Person,
    page: Annotated[PageRequest[str], Depends(page_by("sessions", str))],
) -> Response:
    """List the sessions of the caller's user, the newest first.

    For a token of the built-in user, the list has only the sessions of this token.
    """
    rows = list_sessions(context, principal, after=page.after, limit=page.limit)
    shown, next_page_token = page.cut(rows, lambda row: row.id)
    return reply(Page[BrowserSession](items=tuple(shown), next_page_token=next_page_token))


@router.delete("/sessions/{session_id}", status_code=204, summary="End a browser session")
def end_session(context: ServerContext, principal: Person, session_id: SessionId) -> None:
    """End a session of the caller, with its streams, uploads and commands."""
    check_whole(principal)
    end_own_session(context, principal, session_id)


@router.put("/password", status_code=204, summary="Change the own password")
async def put_password(
    context: ServerContext,
    request: Request,
    principal: OwnUser,
    body: Annotated[PasswordChange, Depends(JsonBody(PasswordChange))],
) -> Response:
    """Change the caller's password; the user's sessions end, and a browser gets a new one."""
    own = await run_in_threadpool(logins.own_account, context, principal)
    check_password(body.new, own.name, pointer="/new")
    account = await checked(context, own.name, body.current, host=host_of(request))
    stored = await new_hash(body.new, holders=holders_of(own.name, host_of(request)))
    session = await run_in_threadpool(
        logins.change_password,
        context,
        principal,
        account,
        new_hash=stored,
        browser=browser_of(context, request),
    )
    response = Response(status_code=204)
    if session is not None:
        set_session_cookie(context, response, session)
    return response


@router.post(
    "/token",
    dependencies=[public],
    status_code=201,
    response_model=TokenView,
    summary="Create a token by name and password",
)
async def create_token(
    context: ServerContext,
    request: Request,
    body: Annotated[PasswordLogin, Depends(JsonBody(PasswordLogin))],
) -> Response:
    """Create an API token without scopes, for the command line.

    Only this response contains the secret. Failed logins count as for a browser.
    """
    refuse_other_sites(context, request)
    account = await checked(context, body.name, body.password, host=host_of(request))
    row, secret = await run_in_threadpool(
        logins.create_password_token,
        context,
        account,
        name=body.token_name,
        expires_in_seconds=body.expires_in_seconds,
    )
    return reply(token_view(row, secret=secret), status=201)


@router.post(
    "/invitation/check",
    dependencies=[public],
    response_model=InvitationCheck,
    summary="Check an invitation",
)
def check(
    context: ServerContext,
    request: Request,
    body: Annotated[InvitationCode, Depends(JsonBody(InvitationCode))],
) -> Response:
    """Return the name of the invited user; a code that is not valid counts as a failed login."""
    refuse_other_sites(context, request)
    with guess(context, of_address(host_of(request))):
        return reply(check_invitation(context, body.code))


@router.post(
    "/invitation",
    dependencies=[public],
    status_code=201,
    response_model=SessionView,
    summary="Set the password of an invitation",
)
async def accept(
    context: ServerContext,
    request: Request,
    body: Annotated[InvitationAcceptance, Depends(JsonBody(InvitationAcceptance))],
) -> Response:
    """Use up the code: set the password, end the user's sessions, and open a new session."""
    refuse_other_sites(context, request)
    name = await run_in_threadpool(_check_acceptance, context, host_of(request), body)
    stored = await new_hash(body.password, holders=holders_of(name, host_of(request)))
    session = await run_in_threadpool(
        accept_invitation, context, body.code, new_hash=stored, browser=browser_of(context, request)
    )
    return await run_in_threadpool(_opened, context, session)


def _check_acceptance(context: Context, host: str, body: InvitationAcceptance) -> str:
    """Check code and password of an acceptance; return the name of the invited user."""
    with guess(context, of_address(host)):
        name = check_invitation(context, body.code).name
    check_password(body.password, name, pointer="/password")
    return name


def refuse_other_sites(context: Context, request: Request) -> None:
    """Refuse a login that a page of another site sends."""
    if "origin" in request.headers:  # another site must not log a browser in, or guess
        check_origin(context, request)


def host_of(request: Request) -> str:
    """Return the address of the client."""
    return request.client.host if request.client else ""


def browser_of(context: Context, request: Request) -> Browser:
    """Return the browser that sends a request."""
    former = request.cookies.get(cookie_name(context))
    return Browser(host_of(request), request.headers.get("user-agent", ""), former)


def _opened(context: Context, session: NewSession) -> Response:
    """Return the response that gives the browser its cookie."""
    view = _session_view(context, session.principal, session.expires_at)
    response = reply(view, status=201)
    set_session_cookie(context, response, session)
    return response


def set_session_cookie(context: Context, response: Response, session: NewSession) -> None:
    """Give the browser the cookie of its session."""
    response.set_cookie(
        cookie_name(context),
        session.cookie,
        max_age=int((session.expires_at - context.now()).total_seconds()),
        httponly=True,
        samesite="strict",
        secure=context.settings.is_https,
    )


def forget_cookie(
    context: Context,
    response: Response,
    name: str | None = None,
    *,
    samesite: Literal["lax", "strict"] = "strict",
) -> None:
    """Delete a cookie of the browser, by default that of its session."""
    response.delete_cookie(
        name or cookie_name(context),
        httponly=True,
        samesite=samesite,
        secure=context.settings.is_https,
    )


def _session_view(
    context: Context, principal: Principal, expires_at: datetime | None
) -> SessionView:
    kind: Literal["admin", "api", "password", "issuer"]
    if principal.token_id is not None:
        kind = "admin" if principal.kind is TokenKind.ADMIN else "api"
    else:
        kind = "issuer" if principal.by_issuer else "password"
    return SessionView(
        name=principal.name,
        kind=kind,
        permissions=known(principal.permissions),
        expires_at=expires_at,
        user=session_user(context, principal),
        is_shared=is_shared(context),
    )
