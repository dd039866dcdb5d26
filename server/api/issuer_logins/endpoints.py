"""`/auth/oidc`: logins through the issuer, linked identities, and logouts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import SecretStr
from starlette.concurrency import run_in_threadpool

from server.api.accounts.guesses import checked
from server.api.accounts.logins import find_account
from server.api.accounts.session_endpoints import (
    browser_of,
    forget_cookie,
    host_of,
    refuse_other_sites,
    set_session_cookie,
)
from server.api.auth.browser_sessions import close_session, printable
from server.api.auth.dependencies import Cookie, OwnUser, person, public
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.api.issuer_logins.login import (
    BegunLogin,
    begin_acceptance,
    begin_link,
    begin_login,
    end_login,
    unlink_own,
)
from server.api.issuer_logins.logout import end_by_logout_token, logout_page
from server.api.issuer_logins.pending import LIFETIME, checked_path
from server.api.sso.faults import LoginError, LoginFault
from server.api.sso.issuer import Issuer
from server.core.context import Context
from server.core.errors import InvalidRequestError, NotFoundError, RefusalError, UnavailableError
from trainyard.protocol.user_accounts.single_sign_on import (
    IssuerPage,
    LinkRequest,
    LogoutPage,
)
from trainyard.protocol.user_accounts.views import InvitationCode

logger = logging.getLogger(__name__)

LOGIN_COOKIE = "trainyard_login"
"""Cookie that binds a login in progress to its browser."""
FORM = {"application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {
    "logout_token": {"type": "string"}}, "required": ["logout_token"]}}}  # fmt: skip

router = APIRouter(prefix="/auth/oidc", tags=["access"])
callback_router = APIRouter(prefix="/auth/oidc", tags=["access"])
"""The callback alone, because issuers add parameters of their own."""


def _issuer(request: Request) -> Issuer:
    issuer: Issuer | None = request.app.state.issuer
    if issuer is None:
        raise NotFoundError("single sign-on is not set up: TRAINYARD_OIDC_ISSUER is not set")
    return issuer


OfServer = Annotated[Issuer, Depends(_issuer)]


@router.get(
    "/login",
    dependencies=[public],
    status_code=302,
    response_class=RedirectResponse,
    summary="Log in through the issuer",
)
def begin_issuer_login(
    context: ServerContext,
    request: Request,
    issuer: OfServer,
    next_path: Annotated[
        str | None, Query(alias="next", description="Path to open after the login.")
    ] = None,
) -> Response:
    """Redirect the browser to the issuer; after a failure, to the login page."""
    path = checked_path(next_path)
    try:
        begun = begin_login(context, issuer, next_path=path, address=host_of(request))
    except LoginError as error:
        return _failed(error)
    response = RedirectResponse(begun.url, status_code=302)
    _bind(context, response, begun)
    return response


@callback_router.get(
    "/callback",
    dependencies=[public],
    status_code=302,
    response_class=RedirectResponse,
    summary="End a login through the issuer",
)
def end_issuer_login(
    context: ServerContext,
    request: Request,
    issuer: OfServer,
    state: str | None = None,
    code: str | None = None,
    error: str | None = None,
    iss: str | None = None,
) -> Response:
    """Open a session for the person whom the issuer confirms, and redirect to the requested page.

    Only the browser in which the login began can end it, once, within ten minutes.
    """
    values = {"state": state, "code": code, "error": error, "iss": iss}
    given = {name: value for name, value in values.items() if value is not None}
    cookie = request.cookies.get(_cookie_name(context))
    try:
        ended = end_login(
            context, issuer, given=given, cookie=cookie, browser=browser_of(context, request)
        )
    except LoginError as failure:
        response = _failed(failure)
    else:
        response = RedirectResponse(ended.next_path, status_code=302)
        if ended.session is not None:
            set_session_cookie(context, response, ended.session)
    forget_cookie(context, response, _cookie_name(context), samesite="lax")
    return response


@router.post("/link", response_model=IssuerPage, summary="Link the own user to the issuer")
async def link_identity(
    context: ServerContext,
    request: Request,
    principal: OwnUser,
    issuer: OfServer,
    body: Annotated[LinkRequest, Depends(JsonBody(LinkRequest, default=LinkRequest()))],
) -> Response:
    """Begin a login that links the person at the issuer to the caller's user.

    The browser then opens the returned page. A user with a password gives it, so that a thief of
    the session gets no way of its own to log in. A wrong password counts as a failed login.
    """
    address = host_of(request)
    await _check_own_password(context, principal, body.password, address=address)
    return await run_in_threadpool(
        _begun,
        context,
        lambda: begin_link(context, issuer, principal=principal, address=address),
    )


async def _check_own_password(
    context: Context, principal: Principal, given: SecretStr | None, *, address: str
) -> None:
    name = "" if principal.user is None else principal.user.name
    account = await run_in_threadpool(find_account, context, name)
    if account is None or account.password is None:
        return
    if given is None:
        raise InvalidRequestError.at("/password", "is missing: give your present password")
    await checked(context, name, given, host=address)


@router.delete("/link", status_code=204, summary="Unlink the own user from the issuer")
def unlink_identity(context: ServerContext, principal: OwnUser) -> None:
    """Remove the linked identity; its sessions, tokens and roles of groups end.

    Needs a browser session of an own login, and a password.
    """
    unlink_own(context, principal)


@router.post(
    "/invitation",
    dependencies=[public],
    response_model=IssuerPage,
    summary="Accept an invitation through the issuer",
)
def accept_by_issuer(
    context: ServerContext,
    request: Request,
    issuer: OfServer,
    body: Annotated[InvitationCode, Depends(JsonBody(InvitationCode))],
) -> Response:
    """Begin a login that links the person at the issuer to the invited user, without a password.

    The browser then opens the returned page. A code that is not valid counts as a failed login.
    """
    refuse_other_sites(context, request)
    return _begun(
        context,
        lambda: begin_acceptance(context, issuer, code=body.code, address=host_of(request)),
    )


@router.post(
    "/logout",
    dependencies=[person],
    response_model=LogoutPage,
    summary="Log out of the issuer, too",
)
def log_out_of_issuer(context: ServerContext, issuer: OfServer, cookie: Cookie) -> Response:
    """End the browser session of the cookie; return the page that ends the issuer's session."""
    if cookie is not None:
        close_session(context, cookie)
    back_to = f"{(context.settings.public_url or '').rstrip('/')}/login"
    response = reply(LogoutPage(url=logout_page(issuer, back_to=back_to)))
    forget_cookie(context, response)
    return response


@router.post(
    "/backchannel-logout",
    dependencies=[public],
    status_code=204,
    openapi_extra={"requestBody": {"required": True, "content": FORM}},
    summary="Logout by the issuer",
)
async def log_out_by_issuer(context: ServerContext, request: Request, issuer: OfServer) -> None:
    """End the sessions that a logout token of the issuer names (Back-Channel Logout 1.0).

    Tokens for programs stay.
    """
    try:
        form = parse_qs((await request.body()).decode("ascii", "replace"), max_num_fields=10)
    except ValueError:
        raise RefusalError("the body has more than ten fields") from None
    (token, *others) = form.get("logout_token", [""])
    try:
        if others:
            raise LoginError(LoginFault.INVALID, "logout_token is given twice")
        await run_in_threadpool(
            end_by_logout_token, context, issuer, token, address=host_of(request)
        )
    except LoginError as error:
        _log(error)
        if error.fault is LoginFault.INVALID:
            raise RefusalError("the logout token is not valid") from None
        raise UnavailableError("the issuer does not respond") from None


def _begun(context: Context, begin_it: Callable[[], BegunLogin]) -> Response:
    try:
        begun = begin_it()
    except LoginError as error:
        _log(error)
        raise UnavailableError(f"the login cannot begin now ({error.fault})") from None
    response = reply(IssuerPage(url=begun.url))
    _bind(context, response, begun)
    return response


def _bind(context: Context, response: Response, begun: BegunLogin) -> None:
    response.set_cookie(
        _cookie_name(context),
        begun.cookie,
        max_age=int(LIFETIME.total_seconds()),
        httponly=True,
        samesite="lax",  # the issuer's page sends the browser back, so it comes from another site
        secure=context.settings.is_https,
    )


def _cookie_name(context: Context) -> str:
    return f"__Host-{LOGIN_COOKIE}" if context.settings.is_https else LOGIN_COOKIE


def _failed(error: LoginError) -> Response:
    _log(error)
    query = urlencode({"error": error.fault.value})
    return RedirectResponse(f"{error.page}?{query}", status_code=302)


def _log(error: LoginError) -> None:
    logger.warning("single sign-on failed (%s): %s", error.fault, printable(error.detail)[:500])
