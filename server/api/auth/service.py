"""Principals of requests, and the life cycle of tokens and browser sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from sqlalchemy import Connection, and_, bindparam, delete, insert, or_, select, update

from server.api.auth.permissions import held_by_token, known
from server.api.auth.scopes import check_scopes
from server.api.auth.tokens import TokenKind, hash_token, make_secret, make_token
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.rows import Token
from server.core.database.source_tables import pilots
from server.core.database.tables import sessions, tokens
from server.core.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
)
from server.core.subject import SERVER, SYSTEM, Actor
from trainyard.protocol.rest.access import Permission, TokenRequest

SESSION_LIFETIME = timedelta(days=30)
MAX_SESSIONS = 200
"""Maximum number of browser sessions of one token; a further login ends the oldest session."""
DEFAULT_LIFETIME = {
    "api": timedelta(days=365),
    "join": timedelta(hours=1),
    "login": timedelta(minutes=10),
}
LOGIN_LIFETIME = DEFAULT_LIFETIME["login"]
"""Maximum lifetime of a login code. It is short, because anyone with a copy of the code can open an
admin session.
"""
LAST_USED_PRECISION = timedelta(minutes=1)
"""Minimum time between two writes of `last_used_at`; otherwise every request would write."""
RESERVED_NAMES = frozenset({"admin", *(actor.name for actor in SYSTEM)})
"""Names of the system's actors in events; no token may have one of these names."""


@dataclass(frozen=True)
class Principal:
    """Holder of the token or the browser session with which a request is authenticated."""

    name: str
    kind: TokenKind
    token_id: str
    token_hash: str = field(default="", repr=False)
    """Hash of the request's token, or of the token that opened the browser session."""
    node: str | None = None
    source: str | None = None
    pilot: tuple[str, int] | None = None
    """The pilot that owns the join secret: id of its request for nodes, and its index in this
    request.
    """
    permissions: frozenset[Permission] = frozenset()
    """Permissions of a person's token; empty for machines."""
    unnoted_use: bool = False
    """Whether `last_used_at` of the token is missing, or older than `LAST_USED_PRECISION`."""

    @property
    def actor(self) -> Actor:
        """The actor that is recorded for the request's changes."""
        is_admin = self.kind is TokenKind.ADMIN
        return Actor(
            self.name,
            self.token_id,
            is_admin=is_admin,
            token_hash=self.token_hash,
            permissions=self.permissions,
        )


@dataclass(frozen=True, slots=True)
class GivenToken(Token):
    """A stored token with its hash."""

    hash: str


@dataclass(frozen=True, slots=True)
class SessionToken(GivenToken):
    """The token that opened a browser session."""

    session_expires_at: Annotated[datetime, sessions.c.expires_at]


@dataclass(frozen=True)
class NewSession:
    """A new browser session; the database stores only a hash of `cookie`."""

    principal: Principal
    cookie: str
    expires_at: datetime


# Built once, because that takes longer than running it.
_HOLDERS = GivenToken.select().where(
    tokens.c.hash.in_(bindparam("of_hashes", expanding=True)),
    tokens.c.revoked_at.is_(None),
    or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > bindparam("now")),
)


def find_holders(context: Context, given: Sequence[str]) -> list[Principal | UnauthenticatedError]:
    """For each token, return its holder or an error, with one query for all tokens."""
    now, hashes = context.now(), [hash_token(token) for token in given]
    query = {"of_hashes": [*dict.fromkeys(hashes)], "now": now}
    with context.database.read() as connection:
        rows = {row.hash: row for row in GivenToken.all(connection, _HOLDERS, query)}
    return [_holder(rows.get(each), now) for each in hashes]


def _holder(row: GivenToken | None, now: datetime) -> Principal | UnauthenticatedError:
    if row is None:
        return UnauthenticatedError("the token is unknown, expired or revoked")
    is_unnoted = row.last_used_at is None or now - row.last_used_at >= LAST_USED_PRECISION
    return replace(_principal(row), unnoted_use=is_unnoted)


def note_uses(context: Context, token_ids: Sequence[str]) -> list[None]:
    """Set `last_used_at` of tokens to now; return one None per token, as group commit requires."""
    now = context.now()
    # Sorted by id, as in every statement that locks several rows, to prevent deadlocks.
    used = [{"of_id": each, "last_used_at": now} for each in sorted({*token_ids})]
    with context.database.write() as connection:
        connection.execute(update(tokens).where(tokens.c.id == bindparam("of_id")), used)
    return [None] * len(token_ids)


def authenticate_pilot(context: Context, secret: str) -> Principal | None:
    """Return the pilot with this join secret, or None if no pilot has it."""
    is_its = pilots.c.secret_hash == hash_token(secret)
    with context.database.read() as connection:
        query = select(pilots.c.request_id, pilots.c.number).where(is_its)
        row = connection.execute(query).one_or_none()
    if row is None:
        return None
    name = f"pilot {row.number} of {row.request_id}"
    return Principal(name, TokenKind.JOIN, "", pilot=(row.request_id, row.number))


def authenticate_session(context: Context, cookie: str) -> tuple[Principal, datetime]:
    """Return the holder of a browser session, and the time at which the session expires.

    Raises:
        UnauthenticatedError: the session is unknown or expired, or its token was revoked.
    """
    now = context.now()
    query = (
        SessionToken.select()
        .join(sessions, sessions.c.token_id == tokens.c.id)
        .where(sessions.c.hash == hash_token(cookie), sessions.c.expires_at > now, is_valid(now))
    )
    with context.database.read() as connection:
        row = SessionToken.one_or_none(connection, query)
    if row is None:
        raise UnauthenticatedError("the browser session is unknown or over; log in again")
    return _principal(row), row.session_expires_at


def open_session(context: Context, *, token: str | None, code: str | None) -> NewSession:
    """Log a browser in with an API or admin token, or with the one-time code of a login link.

    Raises:
        UnauthenticatedError: neither a token nor a code is given, or the given one is unknown,
            expired, revoked or used up.
    """
    now = context.now()
    with context.database.write() as connection:
        if code is not None:
            row = _use_up_login_code(connection, code, now)
        else:
            row = _person_row(connection, token, now)
        expires_at = now + SESSION_LIFETIME
        if row.expires_at is not None:
            expires_at = min(expires_at, row.expires_at)
        cookie = make_secret()
        connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
        new = {"hash": hash_token(cookie), "token_id": row.id, "created_at": now}
        connection.execute(insert(sessions).values(**new, expires_at=expires_at))
        mine = select(sessions.c.hash).where(sessions.c.token_id == row.id)
        oldest = mine.order_by(sessions.c.created_at.desc()).offset(MAX_SESSIONS)
        gone = connection.scalars(oldest).all()
        connection.execute(delete(sessions).where(sessions.c.hash.in_(gone)))
    return NewSession(principal=_principal(row), cookie=cookie, expires_at=expires_at)


def close_session(context: Context, cookie: str) -> None:
    """Log a browser out; an unknown session is ignored."""
    with context.database.write() as connection:
        connection.execute(delete(sessions).where(sessions.c.hash == hash_token(cookie)))


def create_token(
    context: Context, request: TokenRequest, *, actor: Actor = SERVER
) -> tuple[Token, str]:
    """Store a new token, and return its row and its secret text, which is not stored.

    Raises:
        UnauthenticatedError: the token of the actor has ended meanwhile.
        InvalidRequestError: the name is reserved, the lifetime of a login code is too long, or the
            scopes are not legal.
        ForbiddenError: the new token would have permissions that the actor does not have.
        ConflictError: another API token has this name.
    """
    check_scopes(request, actor)
    if request.name in RESERVED_NAMES:
        raise InvalidRequestError.at(
            "/name", f"{request.name!r} is reserved; so are {', '.join(sorted(RESERVED_NAMES))}"
        )
    now = context.now()
    given = request.expires_in_seconds
    lifetime = DEFAULT_LIFETIME[request.kind] if given is None else timedelta(seconds=given)
    if request.kind == "login" and lifetime > LOGIN_LIFETIME:
        raise InvalidRequestError.at(
            "/expires_in_seconds",
            f"expires_in_seconds={given} is more than a login code may live; legal: 60 to "
            f"{LOGIN_LIFETIME.total_seconds():.0f}",
        )
    token = make_token(TokenKind(request.kind))
    values = {
        "id": context.new_id(),
        "name": request.name,
        "kind": request.kind,
        "hash": hash_token(token),
        "created_at": now,
        "expires_at": now + lifetime,
        "scopes": None if request.scopes is None else known(request.scopes),
    }
    with context.database.write() as connection:
        hold_token(connection, actor, now)
        if request.kind == "api" and _name_is_taken(connection, request.name, now):
            raise ConflictError(
                f"an API token is already named {request.name!r}: revoke it or take another name"
            )
        connection.execute(insert(tokens).values(values))
        row = Token.one(connection, Token.select().where(tokens.c.id == values["id"]))
    return row, token


def hold_token(connection: Connection, actor: Actor, now: datetime) -> None:
    """Lock a request's token, so that it stays valid until the transaction ends.

    Call this before the transaction stores anything that a revocation of the token must find.

    Raises:
        UnauthenticatedError: the token has ended since the request was authenticated.
    """
    if actor.token_hash is None:  # the actor is a part of the system and has no token
        return
    held = select(tokens.c.id).where(tokens.c.hash == actor.token_hash, is_valid(now))
    if connection.execute(held.with_for_update(read=True)).one_or_none() is None:
        raise UnauthenticatedError("the token has ended since the request began")


def list_tokens(context: Context, *, after: str | None, limit: int) -> Sequence[Token]:
    """Return at most `limit` tokens with ids below `after` that are not revoked or used up, the
    newest first."""
    query = Token.select().where(tokens.c.revoked_at.is_(None))
    if after is not None:
        query = query.where(tokens.c.id < after)
    with context.database.read() as connection:
        return Token.all(connection, query.order_by(tokens.c.id.desc()).limit(limit))


def revoke_token(context: Context, token_id: str) -> None:
    """Revoke a token; its sessions and its commands in running attempts end.

    Raises:
        NotFoundError: no token has this id, or it is already revoked.
        ConflictError: the token is the admin token, the only one that can create other tokens.
    """
    with context.database.write() as connection:
        found = select(tokens.c.kind).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None))
        row = connection.execute(found.with_for_update()).one_or_none()
        if row is None:
            raise NotFoundError(f"no token has the id {token_id!r}")
        if row.kind == TokenKind.ADMIN:
            raise ConflictError(
                "the admin token cannot be revoked; `python -m server admin-token` replaces it"
            )
        revoked = update(tokens).where(tokens.c.id == token_id)
        connection.execute(revoked.values(revoked_at=context.now()))
        if row.kind == TokenKind.API:
            end_commands_of(connection, [token_id])


def end_commands_of(connection: Connection, token_ids: Sequence[str]) -> int:
    """Close the open commands that these tokens started in attempts; return their number."""
    theirs = shells.c.token_id.in_(token_ids) & shells.c.ended_at.is_(None)
    return connection.execute(update(shells).where(theirs).values(closed=True)).rowcount


def use_up_join_token(context: Context, connection: Connection, principal: Principal) -> None:
    """Use up the join token of a principal.

    Raises:
        UnauthenticatedError: another registration has used the join token meanwhile.
    """
    unused = (tokens.c.id == principal.token_id) & tokens.c.revoked_at.is_(None)
    used = connection.execute(update(tokens).where(unused).values(revoked_at=context.now()))
    if used.rowcount != 1:
        raise UnauthenticatedError("the join token has been used up; make another one")


def replace_token_of(
    context: Context,
    connection: Connection,
    *,
    kind: Literal[TokenKind.NODE, TokenKind.SOURCE],
    name: str,
) -> str:
    """Replace all tokens of a node or source with one new token, and return the new token."""
    now, owner = context.now(), tokens.c[kind.value]
    earlier = (owner == name) & (tokens.c.kind == kind) & tokens.c.revoked_at.is_(None)
    connection.execute(update(tokens).where(earlier).values(revoked_at=now))
    token = make_token(kind)
    row = {
        "id": context.new_id(),
        "name": f"{kind} {name}",
        "kind": kind.value,
        "hash": hash_token(token),
        kind.value: name,
        "created_at": now,
    }
    connection.execute(insert(tokens).values(row))
    return token


def is_valid(now: datetime) -> Any:
    """Return the SQL condition that a token is neither revoked nor expired."""
    return and_(
        tokens.c.revoked_at.is_(None), or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now)
    )


def _principal(row: GivenToken) -> Principal:
    kind, scopes = TokenKind(row.kind), None if row.scopes is None else tuple(row.scopes)
    return Principal(
        name=row.name,
        kind=kind,
        token_id=row.id,
        token_hash=row.hash,
        node=row.node,
        source=row.source,
        permissions=held_by_token(kind, scopes),
    )


def _use_up_login_code(connection: Connection, code: str, now: datetime) -> GivenToken:
    """Revoke a login code and return the admin token, the only token that creates login codes."""
    is_admin = and_(tokens.c.kind == TokenKind.ADMIN, is_valid(now))
    held = GivenToken.select().where(is_admin).with_for_update(read=True)
    admin = GivenToken.one_or_none(connection, held)  # locked first, as a rotation also does
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
        raise UnauthenticatedError("give a token, or the code of a login link")
    is_person = tokens.c.kind.in_([TokenKind.ADMIN, TokenKind.API])
    query = GivenToken.select().where(tokens.c.hash == hash_token(token), is_person, is_valid(now))
    row = GivenToken.one_or_none(connection, query.with_for_update(read=True))
    if row is None:
        raise UnauthenticatedError("the token is unknown, expired or revoked")
    return row


def _name_is_taken(connection: Connection, name: str, now: datetime) -> bool:
    is_named = (tokens.c.name == name) & (tokens.c.kind == TokenKind.API)
    taken = select(tokens.c.id).where(is_named, is_valid(now)).limit(1)
    return connection.execute(taken).first() is not None
