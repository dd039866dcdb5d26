"""Logins through the issuer: begun here, confirmed there, ended with a new session here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import IntegrityError

from server.api.accounts.invitations import check_invitation, use_invitation
from server.api.accounts.throttle import guess, of_address
from server.api.auth.browser_sessions import Browser, IssuerSession, NewSession, store_session
from server.api.auth.principals import IS_ACTIVE, Principal, hold_token, lock_users
from server.api.auth.tokens import hash_token
from server.api.issuer_logins.pending import (
    PendingLogin,
    PendingSecrets,
    store_pending,
    use_pending,
)
from server.api.sso.faults import LoginError, LoginFault
from server.api.sso.identities import (
    LOGIN_WITHOUT_TOKEN,
    find_user,
    link_user,
    note_login,
    unlink,
)
from server.api.sso.issuer import IssuedPerson, Issuer
from server.core.audit.request_rows import CallerIdentity, name_caller
from server.core.context import Context
from server.core.errors import ConflictError, NotFoundError, UnauthenticatedError
from server.core.people.user_tables import sessions, users
from server.core.subject import ADMIN_USER_ID

logger = logging.getLogger(__name__)

PROFILE = "/profile"


@dataclass(frozen=True)
class BegunLogin:
    """A login that continues at the issuer."""

    url: str
    """Page of the issuer."""
    cookie: str = field(repr=False)
    """Secret that binds the login to the browser."""


@dataclass(frozen=True)
class EndedLogin:
    """A login that has succeeded."""

    next_path: str
    session: NewSession | None
    """The new session; None if a session has linked an identity, and goes on."""


def begin_login(context: Context, issuer: Issuer, *, next_path: str, address: str) -> BegunLogin:
    """Begin a login.

    Raises:
        LoginError: the issuer is down, or too many logins are in progress.
    """
    issuer.metadata()  # first, so that an issuer that is down leaves no rows
    return _begun(issuer, store_pending(context, next_path=next_path, address=address))


def begin_link(
    context: Context, issuer: Issuer, *, principal: Principal, address: str
) -> BegunLogin:
    """Begin a login that links an identity to the caller's user.

    Raises:
        ConflictError: the caller has no browser session of an own login, or is the built-in user.
        LoginError: the issuer is down, or too many logins are in progress.
    """
    session_id, _ = _own_login(principal)
    issuer.metadata()
    made = store_pending(context, next_path=PROFILE, address=address, session_id=session_id)
    return _begun(issuer, made)


def unlink_own(context: Context, principal: Principal) -> None:
    """Remove the identity of the caller's user; what came with it ends.

    Raises:
        ConflictError: the caller has no browser session of an own login, is the built-in user, or
            has no password, and so could not log in again.
        NotFoundError: the user has no identity.
        UnauthenticatedError: the session has ended meanwhile.
    """
    _, user_id = _own_login(principal)
    with context.database.write() as connection:
        lock_users(connection, [user_id])
        hold_token(connection, principal.actor, context.now())
        if connection.scalar(select(users.c.password).where(users.c.id == user_id)) is None:
            raise ConflictError("without a password you could not log in again")
        if not unlink(context, connection, user_id):
            raise NotFoundError("no identity of the issuer is linked")


def _own_login(principal: Principal) -> tuple[str, str]:
    """Return the ids of a session that the caller has opened, and of its user.

    Raises:
        ConflictError: the caller has no such session, or is the built-in user.
    """
    if principal.session_id is None or principal.user is None:
        raise ConflictError("an identity is linked in a browser: log in there")
    if principal.user.id == ADMIN_USER_ID:
        raise ConflictError("the built-in user cannot be linked; it has the admin token")
    if principal.token_id is not None:  # a leaked token must not become the whole account
        raise ConflictError("a token has opened this session: log in by password or issuer first")
    return principal.session_id, principal.user.id


def begin_acceptance(
    context: Context, issuer: Issuer, *, code: SecretStr, address: str
) -> BegunLogin:
    """Begin a login that accepts an invitation in place of a password.

    Raises:
        UnauthenticatedError: the invitation is not valid; this counts as a failed login.
        LoginError: the issuer is down, or too many logins are in progress.
    """
    with guess(context, of_address(address)):
        check_invitation(context, code)
    issuer.metadata()
    invitation = hash_token(code.get_secret_value())
    made = store_pending(context, next_path="/jobs", address=address, invitation=invitation)
    return _begun(issuer, made)


def end_login(
    context: Context,
    issuer: Issuer,
    *,
    given: Mapping[str, str],
    cookie: str | None,
    browser: Browser,
) -> EndedLogin:
    """End a login with what the issuer has sent by the browser.

    Args:
        context: the context.
        issuer: the issuer.
        given: `state` with `code` or `error`, and maybe `iss`.
        cookie: value of the cookie that binds the login.
        browser: the browser, for the list of sessions.

    Raises:
        LoginError: the login did not begin in this browser, the issuer refused it, or its reply is
            not valid.
    """
    secrets = PendingSecrets(given.get("state", ""), cookie or "")
    pending = use_pending(context, secrets)
    try:
        return _confirmed(context, issuer, given, pending=pending, secrets=secrets, browser=browser)
    except LoginError as error:
        error.page = error.page if pending.session_id is None else PROFILE
        raise


def _confirmed(
    context: Context,
    issuer: Issuer,
    given: Mapping[str, str],
    *,
    pending: PendingLogin,
    secrets: PendingSecrets,
    browser: Browser,
) -> EndedLogin:
    issuer.check_sender(given.get("iss"))
    if "error" in given:
        raise LoginError(LoginFault.DENIED, f"the issuer refused: {given['error'][:100]!r}")
    if not given.get("code"):
        raise LoginError(LoginFault.INVALID, "the issuer sent neither a code nor an error")
    person = issuer.exchange(given["code"], nonce=secrets.nonce, verifier=secrets.verifier)
    try:
        return _stored(context, issuer, pending=pending, person=person, browser=browser)
    except IntegrityError:  # a concurrent first login has stored the user or the identity
        return _stored(context, issuer, pending=pending, person=person, browser=browser)


def _begun(issuer: Issuer, made: PendingSecrets) -> BegunLogin:
    url = issuer.login_url(state=made.state, nonce=made.nonce, verifier=made.verifier)
    return BegunLogin(url, made.cookie)


def _stored(
    context: Context,
    issuer: Issuer,
    *,
    pending: PendingLogin,
    person: IssuedPerson,
    browser: Browser,
) -> EndedLogin:
    with context.database.write() as connection:
        if pending.session_id is not None:
            user_id = _linking_user(context, connection, pending.session_id)
            link_user(connection, issuer, user_id=user_id, person=person)
            name = connection.scalar(select(users.c.name).where(users.c.id == user_id))
            name_caller(CallerIdentity(name, user_id, session_id=pending.session_id))
        elif pending.invitation is not None:
            user_id = _invited_user(context, connection, pending.invitation)
            link_user(connection, issuer, user_id=user_id, person=person)
        else:
            user_id = find_user(context, connection, issuer, person=person)
        is_checked = note_login(context, connection, user_id=user_id, person=person)
        if pending.session_id is not None:
            return EndedLogin(pending.next_path, None)
        session = store_session(
            context,
            connection,
            user_id=user_id,
            ends_at=None if is_checked else context.now() + LOGIN_WITHOUT_TOKEN,
            browser=browser,
            issuer_session=IssuerSession(person.session),
        )
        return EndedLogin(pending.next_path, session)


def _linking_user(context: Context, connection: Connection, session_id: str) -> str:
    """Lock and return the user of the session that links an identity."""
    its = (sessions.c.id == session_id) & (sessions.c.expires_at > context.now())
    query = select(sessions.c.user_id).where(its, sessions.c.token_id.is_(None))
    user_id: str | None = connection.scalar(query)
    lock_users(connection, [user_id])
    active = query.join(users, users.c.id == sessions.c.user_id).where(IS_ACTIVE)
    if user_id is None or connection.scalar(active) is None:
        raise LoginError(LoginFault.ENDED, "the session that links an identity has ended")
    return user_id


def _invited_user(context: Context, connection: Connection, invitation: str) -> str:
    """Use up an invitation; lock and return its user, whose other access ends."""
    try:
        user_id = use_invitation(context, connection, invitation)
    except UnauthenticatedError as error:
        raise LoginError(LoginFault.ENDED, error.detail) from None
    connection.execute(update(users).where(users.c.id == user_id).values(password=None))
    return user_id
