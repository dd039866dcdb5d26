"""Browser sessions: opened with a token, a login code or a password; listed and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, insert, select, update

from server.api.auth.endings import end_sessions
from server.api.auth.principals import (
    IS_ACTIVE,
    OF_TOKEN,
    GivenSession,
    GivenToken,
    Principal,
    is_unnoted,
    is_valid,
    lock_users,
    sessions_of,
)
from server.api.auth.tokens import TokenKind, hash_token, make_secret
from server.core.addresses import counted_as
from server.core.audit.request_rows import CallerIdentity, name_caller, no_change
from server.core.context import Context
from server.core.database.tables import tokens
from server.core.errors import ForbiddenError, NotFoundError, UnauthenticatedError
from server.core.people.former_holders import EndedCredentialError, holder_of_session
from server.core.people.user_tables import sessions, users
from server.core.subject import ADMIN_USER_ID
from trainyard.protocol.user_accounts.views import BrowserSession, UserKind

SESSION_LIFETIME = timedelta(days=30)
MAX_SESSIONS = 200
"""Maximum number of browser sessions of one person; a further login ends the oldest session."""
LOGIN_LIFETIME = timedelta(minutes=10)
"""Maximum lifetime of a login code. It is short, because anyone with a copy of the code can open an
admin session.
"""
LONGEST_ADDRESS, LONGEST_BROWSER = 100, 200
"""Maximum lengths of the stored address and user agent, in characters."""


@dataclass(frozen=True)
class Browser:
    """A browser that logs in, as its user later recognizes it."""

    address: str = ""
    user_agent: str = ""
    former_cookie: str | None = field(default=None, repr=False)
    """Cookie of the session that the login replaces, if the browser has one."""


@dataclass(frozen=True)
class IssuerSession:
    """The session at the issuer behind a login; `id` is None if the issuer named none."""

    id: str | None


@dataclass(frozen=True)
class NewSession:
    """A new browser session; the database stores only a hash of `cookie`."""

    principal: Principal
    cookie: str = field(repr=False)
    expires_at: datetime


def open_session(
    context: Context, *, token: str | None, code: str | None, browser: Browser | None = None
) -> NewSession:
    """Log a browser in with an API or admin token, or with the one-time code of a login link.

    Raises:
        UnauthenticatedError: neither a token nor a code is given, or the given one is unknown,
            expired, revoked or used up.
        ForbiddenError: the token is of a service account.
    """
    now = context.now()
    with context.database.write() as connection:
        if code is not None:
            row = _use_up_login_code(connection, code, now)
        else:
            row = _person_row(connection, token, now)
        ends_at = now + SESSION_LIFETIME
        if row.expires_at is not None:
            ends_at = min(ends_at, row.expires_at)
        user_id = row.user_id or ADMIN_USER_ID
        return store_session(
            context, connection, user_id=user_id, token_id=row.id, ends_at=ends_at, browser=browser
        )


def store_session(
    context: Context,
    connection: Connection,
    *,
    user_id: str,
    token_id: str | None = None,
    ends_at: datetime | None = None,
    browser: Browser | None = None,
    issuer_session: IssuerSession | None = None,
) -> NewSession:
    """Store a session of a user, whose row the caller has locked; the oldest beyond the limit end.

    A session without `token_id` has all permissions of the user. `issuer_session` is given after a
    login through the issuer.
    """
    now, cookie, seen = context.now(), make_secret(), browser or Browser()
    row = {
        "hash": hash_token(cookie),
        "id": context.new_id(),
        "user_id": user_id,
        "token_id": token_id,
        "created_at": now,
        "expires_at": ends_at or now + SESSION_LIFETIME,
        "address": counted_as(seen.address)[:LONGEST_ADDRESS] or None,
        "browser": printable(seen.user_agent)[:LONGEST_BROWSER] or None,
        "by_issuer": issuer_session is not None,
        "issuer_session": None if issuer_session is None else issuer_session.id,
    }
    if seen.former_cookie is not None:
        former = sessions.c.hash == hash_token(seen.former_cookie)
        end_sessions(connection, former & (sessions.c.user_id == user_id))
    connection.execute(insert(sessions).values(row))
    mine = _of_person(user_id, token_id)
    oldest = select(sessions.c.id).where(mine).order_by(sessions.c.created_at.desc())
    surplus = connection.scalars(oldest.offset(MAX_SESSIONS)).all()
    if surplus:
        end_sessions(connection, sessions.c.id.in_(surplus))
    query = GivenSession.select().join(users, users.c.id == sessions.c.user_id)
    query = query.join(tokens, tokens.c.id == sessions.c.token_id, isouter=True)
    its = sessions.c.hash == row["hash"]
    stored = GivenSession.one(connection, query.where(its), {"now": now})
    name_caller(identity_of(stored.principal))
    return NewSession(stored.principal, cookie, stored.expires_at)


def identity_of(principal: Principal) -> CallerIdentity:
    """Return who calls, for the audit log."""
    user = principal.user
    return CallerIdentity(
        user=None if user is None else user.name,
        user_id=None if user is None else user.id,
        token=None if principal.token_id is None and user is not None else principal.name,
        token_id=principal.token_id,
        session_id=principal.session_id,
        break_glass=True if principal.kind is TokenKind.ADMIN else None,
    )


def find_session(context: Context, session_id: str) -> Principal | None:
    """Return the holder of a valid session with this id; None if it has ended."""
    query = select(sessions.c.hash).where(sessions.c.id == session_id)
    with context.database.read() as connection:
        given = {"of_sessions": connection.scalars(query).all(), "now": context.now()}
        row = GivenSession.one_or_none(connection, sessions_of(GivenSession.select()), given)
    return None if row is None else row.principal


def printable(text: str) -> str:
    """Return a text with `?` for each character that cannot be shown."""
    return "".join(each if each.isprintable() else "?" for each in text)


_SESSIONS = sessions_of(GivenSession.select())  # built once, because that takes longest


def authenticate_session(context: Context, cookie: str) -> tuple[Principal, datetime]:
    """Return the holder of a browser session, and the time at which the session expires.

    Raises:
        UnauthenticatedError: the session is unknown or expired, its token was revoked, or its user
            is disabled.
    """
    now = context.now()
    with context.database.read() as connection:
        given = {"of_sessions": [hash_token(cookie)], "now": now}
        row = GivenSession.one_or_none(connection, _SESSIONS, given)
        if row is None:
            former = holder_of_session(connection, hash_token(cookie))
            words = "the browser session is unknown or over; log in again"
            raise EndedCredentialError(words, former)
    unnoted = is_unnoted(row.last_used_at, now)
    return replace(row.principal, unnoted_use=unnoted), row.expires_at


def note_session_use(context: Context, session_id: str) -> None:
    """Set `last_used_at` of a browser session to now."""
    used = update(sessions).where(sessions.c.id == session_id).values(last_used_at=context.now())
    with no_change(), context.database.write() as connection:
        connection.execute(used)


def close_session(context: Context, cookie: str) -> None:
    """Log a browser out; an unknown session is ignored."""
    its = sessions.c.hash == hash_token(cookie)
    with context.database.write() as connection:
        lock_users(connection, connection.scalars(select(sessions.c.user_id).where(its)).all())
        end_sessions(connection, its)


def list_sessions(
    context: Context, principal: Principal, *, after: str | None, limit: int
) -> Sequence[BrowserSession]:
    """Return at most `limit` sessions of the caller with ids below `after`, the newest first."""
    query = select(sessions).where(_own(principal), sessions.c.expires_at > context.now())
    if after is not None:
        query = query.where(sessions.c.id < after)
    with context.database.read() as connection:
        rows = connection.execute(query.order_by(sessions.c.id.desc()).limit(limit)).all()
    return [
        BrowserSession(
            id=row.id,
            created_at=row.created_at,
            expires_at=row.expires_at,
            last_used_at=row.last_used_at,
            address=row.address,
            browser=row.browser,
            is_current=row.id == principal.session_id,
        )
        for row in rows
    ]


def end_own_session(context: Context, principal: Principal, session_id: str) -> None:
    """End a session of the caller, and its commands.

    Raises:
        NotFoundError: the caller has no such session.
    """
    with context.database.write() as connection:
        lock_users(connection, [None if principal.user is None else principal.user.id])
        if not end_sessions(connection, _own(principal) & (sessions.c.id == session_id)):
            raise NotFoundError(f"you have no session with the id {session_id!r}")


def _own(principal: Principal) -> ColumnElement[bool]:
    user_id = principal.user.id if principal.user is not None else ADMIN_USER_ID
    return _of_person(user_id, principal.token_id)


def _of_person(user_id: str, token_id: str | None) -> ColumnElement[bool]:
    """Return the condition for the sessions of a user, or of one token of the built-in user."""
    if user_id != ADMIN_USER_ID:
        return sessions.c.user_id == user_id
    return sessions.c.token_id == token_id


def _use_up_login_code(connection: Connection, code: str, now: datetime) -> GivenToken:
    """Revoke a login code and return the admin token, the only token that creates login codes."""
    lock_users(connection, [ADMIN_USER_ID])  # locked first, as a rotation also does
    is_admin = and_(tokens.c.kind == TokenKind.ADMIN, is_valid(now))
    held = GivenToken.select().join(users, OF_TOKEN).where(is_admin)
    admin = GivenToken.one_or_none(
        connection, held.with_for_update(read=True, of=tokens), {"now": now}
    )
    used = connection.execute(
        update(tokens)
        .where(
            tokens.c.hash == hash_token(code),
            tokens.c.kind == TokenKind.LOGIN,
            tokens.c.created_at > now - LOGIN_LIFETIME,  # former versions allowed longer lifetimes
            is_valid(now),
        )
        .values(revoked_at=now, last_used_at=now)
    )
    if admin is None or used.rowcount != 1:
        raise UnauthenticatedError("the login code is unknown, expired or used up")
    return admin


def _person_row(connection: Connection, token: str | None, now: datetime) -> GivenToken:
    if token is None:
        raise UnauthenticatedError("give a token, the code of a login link, or name and password")
    is_person = tokens.c.kind.in_([TokenKind.ADMIN, TokenKind.API])
    its = (tokens.c.hash == hash_token(token), is_person)
    lock_users(connection, connection.scalars(select(tokens.c.user_id).where(*its)).all())
    query = GivenToken.select().join(users, OF_TOKEN).where(*its, is_valid(now), IS_ACTIVE)
    row = GivenToken.one_or_none(
        connection, query.with_for_update(read=True, of=tokens), {"now": now}
    )
    if row is None:
        raise UnauthenticatedError("the token is unknown, expired or revoked")
    if row.user_kind == UserKind.SERVICE:
        raise ForbiddenError(f"{row.user_name} is a service account, which opens no sessions")
    return row
