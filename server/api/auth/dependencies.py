"""FastAPI dependencies that authorize a request: they return its principal or raise an error.

Each endpoint has exactly one of them, which declares who may call it; `access_of` returns the
declaration. Each dependency reads the request itself, because sub-dependencies would take longer
than the database query. `schemes_of` returns the security schemes of a dependency for OpenAPI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi import params as fastapi_params
from starlette.concurrency import run_in_threadpool

from server.api.auth.browser_sessions import authenticate_session, identity_of, note_session_use
from server.api.auth.lasting_requests import LastingRequests
from server.api.auth.permissions import MEANINGS, WITHOUT_SCOPES, Roles, scope_of
from server.api.auth.principals import Principal, authenticate_pilot, find_holders, note_uses
from server.api.auth.tokens import TokenKind, hash_token
from server.api.http.dependencies import context_of
from server.api.http.group_commit import served_together
from server.api.http.middleware import SCOPE_KEY
from server.core.audit.request_rows import Audited, current_request, store_read
from server.core.context import Context
from server.core.errors import ForbiddenError, UnauthenticatedError
from server.core.people.former_holders import EndedCredentialError
from server.core.subject import ADMIN_USER_ID
from trainyard.base.loopback import is_loopback
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.views import UserKind

SESSION_COOKIE = "trainyard_session"
SECURE_SESSION_COOKIE = f"__Host-{SESSION_COOKIE}"
"""Name of the session cookie under https; only this host can set it, and only with `Secure`."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_PERSONS = (TokenKind.ADMIN, TokenKind.API)

SCHEMES: Mapping[str, Mapping[str, str]] = {
    "token": {"type": "http", "description": "A token `ty_<kind>_...`.", "scheme": "bearer"},
    "session": {
        "type": "apiKey",
        "description": "The browser session of `POST /auth/session`; writes also check `Origin`.",
        "in": "cookie",
        "name": SESSION_COOKIE,
    },
}
"""OpenAPI's security schemes, by name."""

ONLY_ADMIN = (
    "only admins have it: log in by the link that `trainyard up` prints, or use a token with this "
    "scope, or the token in admin.token of the server's state folder (docs/deployment.md)"
)


class Caller(StrEnum):
    """Who may call an endpoint that needs no permission."""

    PUBLIC = "public"
    PERSON = "person"
    USER = "user"
    NODE = "node"
    JOINER = "joiner"
    PILOT = "pilot"
    SOURCE = "source"
    SOURCE_JOINER = "source_joiner"
    ATTEMPT = "attempt"


Access = Permission | Caller
"""What an endpoint declares: the permission that it needs, or who may call it without one."""

Dependency = TypeVar("Dependency", bound=Callable[..., object])
_schemes: dict[Callable[..., object], tuple[str, ...]] = {}
_accesses: dict[Callable[..., object], Access] = {}


def schemes_of(call: Callable[..., Any] | None) -> tuple[str, ...]:
    """Return the names of a dependency's security schemes; empty if the dependency authorizes
    nothing."""
    return () if call is None else _schemes.get(call, ())


def access_of(call: Callable[..., Any] | None) -> Access | None:
    """Return what a dependency declares, or None if it declares nothing."""
    return None if call is None else _accesses.get(call)


def _by(access: Access | None, *schemes: str) -> Callable[[Dependency], Dependency]:
    def note(dependency: Dependency) -> Dependency:
        _schemes[dependency] = schemes
        if access is not None:
            _accesses[dependency] = access
        return dependency

    return note


def lasting_requests(request: Request) -> LastingRequests:
    """Return the lasting requests of the application that serves a request."""
    found = request.app.state.lasting_requests
    assert isinstance(found, LastingRequests)
    return found


def cookie_name(context: Context) -> str:
    """Return the name of the cookie that holds a browser session."""
    return SECURE_SESSION_COOKIE if context.settings.is_https else SESSION_COOKIE


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _required(token: str | None) -> str:
    if token is None:
        raise UnauthenticatedError("send a token: Authorization: Bearer ty_...")
    return token


@_by(None, "session")
async def _session_cookie(request: Request) -> str | None:
    return request.cookies.get(cookie_name(context_of(request)))


@_by(Caller.PUBLIC)
async def _public(request: Request) -> None:
    """Let everyone through; async, so that no thread runs it."""
    audited = current_request()
    if audited is not None:
        audited.name_operation(request.scope)


@_by(Caller.PERSON, "token", "session")
async def _person(request: Request) -> Principal:
    principal = await _authenticated(request)
    request.scope[SCOPE_KEY] = principal.scope
    return principal


async def _authenticated(request: Request) -> Principal:
    context, token = context_of(request), _bearer(request)
    cookie = await _session_cookie(request) if token is None else None
    if cookie is None:
        return await _of_kind(request, token, _PERSONS)
    with _former_caller():
        principal, _ = await run_in_threadpool(authenticate_session, context, cookie)
    _note_caller(request, principal)
    if request.method not in SAFE_METHODS:
        check_origin(context, request)
    if principal.unnoted_use and principal.session_id is not None:
        await run_in_threadpool(note_session_use, context, principal.session_id)
    return principal


@contextmanager
def _former_caller() -> Iterator[None]:
    """Name the former holder of a token or session that has ended, for the audit log."""
    try:
        yield
    except EndedCredentialError as error:
        audited = current_request()
        if audited is not None:
            audited.named = error.former
        raise


def _note_caller(request: Request, principal: Principal) -> None:
    """Name operation and caller for the audit rows of the request."""
    audited = current_request()
    if audited is not None:
        audited.name_operation(request.scope)
        audited.caller = identity_of(principal)
        audited.may_be_hidden = principal.user is not None and not principal.scope.sees_all


@_by(Caller.USER, "token", "session")
async def _own_user(request: Request) -> Principal:
    principal = await _person(request)
    if principal.user is not None and principal.user.kind is UserKind.SERVICE:
        raise ForbiddenError(
            f"{principal.user.name} is a service account: a maintainer of its project makes and "
            "revokes its tokens"
        )
    is_built_in = principal.user is not None and principal.user.id == ADMIN_USER_ID
    if is_built_in and Permission.TOKENS_ADMIN not in principal.permissions:
        # Such tokens stand for different people, and none of them acts for the others.
        raise _refusal(principal, Permission.TOKENS_ADMIN)
    if request.method not in SAFE_METHODS:
        check_whole(principal)
    return principal


def check_whole(principal: Principal) -> None:
    """Check that a token may change tokens, sessions and the password of its user.

    A leaked token with few scopes could otherwise outlive its revocation by a copy of itself.

    Raises:
        ForbiddenError: the token allows less than a token without scopes.
    """
    if principal.user is None or Permission.TOKENS_ADMIN in principal.permissions:
        return
    if not principal.token_allows >= WITHOUT_SCOPES and principal.user.id != ADMIN_USER_ID:
        raise ForbiddenError(
            f"{principal.actor.credential} has scopes, and may not change tokens, sessions or the "
            "password of its user: log in by password, or use a token without scopes"
        )


@cache
def may(permission: Permission) -> fastapi_params.Depends:
    """Return the dependency that lets people with a permission through."""

    @_by(permission, "token", "session")
    async def permitted(request: Request) -> Principal:
        principal = await _person(request)
        if permission not in principal.permissions:
            raise _refusal(principal, permission)
        audited = current_request()
        if audited is not None and audited.audited is Audited.SENSITIVE:
            await run_in_threadpool(store_read, context_of(request), audited)
        return principal

    declared: fastapi_params.Depends = Depends(permitted)
    return declared


def _refusal(principal: Principal, permission: Permission) -> ForbiddenError:
    refusal, user = principal.actor.refusal(permission), principal.user
    if user is not None and user.id != ADMIN_USER_ID:
        roles = Roles(user.role, tuple(principal.scope.roles.items()))
        if permission in scope_of(roles).anywhere:  # the token has not all permissions of the user
            return refusal
        least = MEANINGS[permission].least_role
        return ForbiddenError(f"{refusal.detail}; the least role with it is {least}")
    if permission in WITHOUT_SCOPES:
        return refusal
    return ForbiddenError(f"{refusal.detail}; {ONLY_ADMIN}")


def _by_token(caller: Caller, *kinds: TokenKind) -> Callable[[Request], Awaitable[Principal]]:
    @_by(caller, "token")
    async def dependency(request: Request) -> Principal:
        return await _of_kind(request, _bearer(request), kinds)

    return dependency


@_by(Caller.JOINER, "token")
async def _joiner(request: Request) -> Principal:
    context, token = context_of(request), _bearer(request)
    if token is not None:
        found = await run_in_threadpool(authenticate_pilot, context, token)
        if found is not None:
            _note_caller(request, found)
            return found
    return await _of_kind(request, token, (TokenKind.JOIN, TokenKind.NODE))


@_by(Caller.PILOT, "token")
def _pilot(request: Request) -> Principal:
    pilot = authenticate_pilot(context_of(request), _required(_bearer(request)))
    if pilot is None:
        raise UnauthenticatedError("no pilot has this join secret")
    return pilot


@_by(Caller.ATTEMPT, "token")
async def _attempt_token_hash(request: Request) -> str:
    return hash_token(_required(_bearer(request)))


async def _of_kind(request: Request, token: str | None, kinds: tuple[TokenKind, ...]) -> Principal:
    with _former_caller():
        principal = await served_together(request, find_holders, _required(token))
    if principal.unnoted_use and principal.token_id is not None:
        # In a separate group, so that other requests do not wait for a write.
        await served_together(request, note_uses, principal.token_id)
    _note_caller(request, principal)
    if principal.kind not in kinds:
        legal = " or ".join(kinds)
        raise ForbiddenError(f"a token of kind {principal.kind} may not do this; {legal} may")
    return principal


def check_origin(context: Context, request: Request) -> None:
    """Check that a request with this site's cookie comes from a page of this site.

    Without `public_url`, the `Host` header gives the server's origin. Only loopback hosts are then
    accepted, because another site can point its name at the server's address (DNS rebinding).

    Raises:
        ForbiddenError: the `Origin` header is absent or differs from the server's origin, or the
            host is no loopback host and `public_url` is not set.
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


public = Depends(_public)
"""Everyone, without a token."""
person = Depends(_person)
"""An API or admin token with any permissions, or a browser session."""
own_user = Depends(_own_user)
"""A person who acts for the own user: a token or session of a user; of the built-in user only with
`tokens:admin`."""
node = Depends(_by_token(Caller.NODE, TokenKind.NODE))
"""The token of a node."""
joiner = Depends(_joiner)
"""A join token, the join secret of a pilot, or the token of a node that registers again."""
pilot = Depends(_pilot)
"""The join secret of a pilot."""
source = Depends(_by_token(Caller.SOURCE, TokenKind.SOURCE))
"""The token of a source of nodes."""
source_joiner = Depends(_by_token(Caller.SOURCE_JOINER, TokenKind.JOIN, TokenKind.SOURCE))
"""A join token, or the token of a source that registers again."""
attempt = Depends(_attempt_token_hash)
"""Hash of the request's token; `server.jobs.attempts.reports` compares it with the stored hash."""

Cookie = Annotated[str | None, Depends(_session_cookie)]
"""Value of the browser session's cookie, not authenticated."""
Person = Annotated[Principal, person]
OwnUser = Annotated[Principal, own_user]
Node = Annotated[Principal, node]
Joiner = Annotated[Principal, joiner]
Pilot = Annotated[Principal, pilot]
Source = Annotated[Principal, source]
SourceJoiner = Annotated[Principal, source_joiner]
AttemptTokenHash = Annotated[str, attempt]
