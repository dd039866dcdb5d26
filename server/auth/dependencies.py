"""Authorization of endpoints: dependencies that return the principal or refuse the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from server.auth.service import (
    Principal,
    authenticate_session,
    authenticate_token,
)
from server.auth.tokens import TokenKind, hash_token
from server.context import Context
from server.errors import ForbiddenError, UnauthenticatedError
from server.http.dependencies import ServerContext
from trainyard.base.loopback import is_loopback

SESSION_COOKIE = "trainyard_session"
SECURE_SESSION_COOKIE = f"__Host-{SESSION_COOKIE}"
"""Name under https: browsers accept the prefix `__Host-` from this host alone, with `Secure`."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
NO_TOKEN = "send a token: Authorization: Bearer ty_..."

_PERSONS = (TokenKind.ADMIN, TokenKind.API)

_token_scheme = HTTPBearer(
    scheme_name="token", auto_error=False, description="A token `ty_<kind>_...`."
)
_cookie_scheme = APIKeyCookie(
    name=SESSION_COOKIE,
    scheme_name="session",
    auto_error=False,
    description="The browser session of `POST /auth/session`; writes also check `Origin`.",
)


def cookie_name(context: Context) -> str:
    """Return the name of the cookie that holds a browser session."""
    return SECURE_SESSION_COOKIE if context.settings.is_https else SESSION_COOKIE


async def _session_cookie(
    context: ServerContext, request: Request, _: Annotated[str | None, Depends(_cookie_scheme)]
) -> str | None:
    return request.cookies.get(cookie_name(context))


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_token_scheme)]
Cookie = Annotated[str | None, Depends(_session_cookie)]


def _person(context: ServerContext, request: Request, bearer: Bearer, cookie: Cookie) -> Principal:
    if bearer is not None or cookie is None:
        return _of_kind(context, bearer, _PERSONS)
    if request.method not in SAFE_METHODS:
        check_origin(context, request)
    principal, _ = authenticate_session(context, cookie)
    return principal


async def _admin(principal: Annotated[Principal, Depends(_person)]) -> Principal:
    if principal.kind is not TokenKind.ADMIN:
        raise ForbiddenError(
            "this needs the admin token: log in by the link that `trainyard up` prints, or use the "
            "token in admin.token of the server's state folder (docs/deployment.md)"
        )
    return principal


def _by_token(*kinds: TokenKind) -> Callable[[ServerContext, Bearer], Principal]:
    def dependency(context: ServerContext, bearer: Bearer) -> Principal:
        return _of_kind(context, bearer, kinds)

    return dependency


async def _attempt_token_hash(bearer: Bearer) -> str:
    if bearer is None:
        raise UnauthenticatedError(NO_TOKEN)
    return hash_token(bearer.credentials)


def _of_kind(
    context: Context, bearer: HTTPAuthorizationCredentials | None, kinds: tuple[TokenKind, ...]
) -> Principal:
    if bearer is None:
        raise UnauthenticatedError(NO_TOKEN)
    principal = authenticate_token(context, bearer.credentials)
    if principal.kind not in kinds:
        legal = " or ".join(kinds)
        raise ForbiddenError(f"a token of kind {principal.kind} may not do this; {legal} may")
    return principal


def check_origin(context: Context, request: Request) -> None:
    """Refuse requests of other sites' pages that carry this site's cookie.

    Without `public_url` the `Host` header names the server, and another site can point its own name
    at the server's address (DNS rebinding): then only loopback is accepted.

    Raises:
        ForbiddenError: the `Origin` header is absent or names another origin than the server's.
    """
    origin = request.headers.get("origin", "")
    public_url = context.settings.public_url
    if public_url is not None:
        split = urlsplit(public_url)
        own = f"{split.scheme}://{split.netloc}"
    else:
        own = f"{request.url.scheme}://{request.headers.get('host', '')}"
        if not is_loopback(request.url.hostname or ""):
            raise ForbiddenError(
                f"browsers reach this server at {request.url.hostname!r}: set TRAINYARD_PUBLIC_URL "
                "to its URL; without it only pages of localhost, 127.0.0.0/8 and [::1] may log in "
                "and write"
            )
    if origin != own:
        raise ForbiddenError(
            f"a write by cookie must come from {own}, not from {origin or 'nowhere'}"
        )


person = Depends(_person)
"""An API or admin token, or a browser session."""
admin = Depends(_admin)
"""The admin token, or a browser session of it."""
node = Depends(_by_token(TokenKind.NODE))
"""The token of a node."""
joiner = Depends(_by_token(TokenKind.JOIN, TokenKind.NODE))
"""A join token, or the token of a node that comes back."""
attempt = Depends(_attempt_token_hash)
"""Hash of the token, which `server.attempts.service.authenticate_share` compares."""

Person = Annotated[Principal, person]
Admin = Annotated[Principal, admin]
Node = Annotated[Principal, node]
Joiner = Annotated[Principal, joiner]
AttemptTokenHash = Annotated[str, attempt]
