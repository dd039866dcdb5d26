"""The life cycle of tokens: created, listed, revoked and replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from sqlalchemy import ColumnElement, Connection, exists, func, insert, or_, select, update

from server.api.auth.browser_sessions import LOGIN_LIFETIME
from server.api.auth.endings import end_tokens
from server.api.auth.permissions import known
from server.api.auth.principals import OF_TOKEN, Principal, hold_token, is_valid, lock_users
from server.api.auth.scopes import check_token_request
from server.api.auth.tokens import TokenKind, hash_token, make_token
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.rows import Token
from server.core.database.tables import tokens
from server.core.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
)
from server.core.people.identity_tables import identities
from server.core.people.user_tables import sessions, users
from server.core.subject import ADMIN_USER_ID, SERVER, SYSTEM, Actor
from trainyard.protocol.rest.access import Permission, TokenRequest

DEFAULT_LIFETIME = {
    "api": timedelta(days=365),
    "join": timedelta(hours=1),
    "login": LOGIN_LIFETIME,
}
MAX_TOKENS = 200
"""Maximum number of valid API tokens of one user."""
RESERVED_NAMES = frozenset({"admin", *(actor.name for actor in SYSTEM)})
"""Names of the system's actors in events; no token and no user may have one of these names."""


@dataclass(frozen=True, slots=True)
class ListedToken(Token):
    """A stored token with the name of its user."""

    user: Annotated[str | None, users.c.name.label("user_name")]


def create_token(
    context: Context,
    request: TokenRequest,
    *,
    actor: Actor = SERVER,
    hold: Callable[[Connection], None] | None = None,
) -> tuple[ListedToken, str]:
    """Store a new token of the actor's user; return its row and its secret, which is not stored.

    A token that a token makes ends with it, and expires no later. `hold` locks what authenticated
    the actor; by default, `hold_token` locks the actor's token.

    Raises:
        UnauthenticatedError: the token of the actor has ended meanwhile.
        InvalidRequestError: the name is reserved, the lifetime of a login code is too long, or the
            scopes are not legal.
        ForbiddenError: the new token would have permissions that the actor does not have.
        ConflictError: another API token of the user has this name, or the user has `MAX_TOKENS`.
    """
    check_token_request(request, actor)
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
    values: dict[str, Any] = {
        "id": context.new_id(),
        "name": request.name,
        "kind": request.kind,
        "hash": hash_token(token),
        "created_at": now,
        "expires_at": now + lifetime,
        "scopes": None if request.scopes is None else known(request.scopes),
        "user_id": actor.owner_id,
        "maker_token_id": actor.token_id,
        "by_issuer": _is_by_issuer(actor),
    }
    with context.database.write() as connection:
        if hold is None:
            lock_users(connection, [actor.user_id])  # such that limit and name hold
            hold_token(connection, actor, now)
        else:
            hold(connection)
        if request.kind == "api" and _name_is_taken(connection, values):
            raise ConflictError(
                f"an API token is already named {request.name!r}: revoke it or take another name"
            )
        if request.kind == "api":
            _check_room(connection, values)
        values["expires_at"] = _until(connection, values["expires_at"], actor)
        connection.execute(insert(tokens).values(values))
        shown = {each: values[each] for each in ("name", "kind", "scopes", "expires_at")}
        note_change(object=f"tokens/{values['id']}", after={"owner": actor.user_name, **shown})
        return _listed(connection, str(values["id"])), token


def _is_by_issuer(actor: Actor) -> ColumnElement[bool]:
    """Return the SQL condition that the actor's session or token comes from the issuer."""
    return or_(
        exists().where(sessions.c.id == actor.session_id, sessions.c.by_issuer),
        exists().where(tokens.c.id == actor.token_id, tokens.c.by_issuer),
    )


def _listed(connection: Connection, token_id: str) -> ListedToken:
    query = ListedToken.select().join(users, OF_TOKEN, isouter=True)
    return ListedToken.one(connection, query.where(tokens.c.id == token_id))


def list_tokens(
    context: Context, *, after: str | None, limit: int, user_id: str | None = None
) -> Sequence[ListedToken]:
    """Return at most `limit` tokens with ids below `after` that are not revoked or used up, the
    newest first.

    With `user_id`, only the tokens of this user are listed.
    """
    query = ListedToken.select().join(users, OF_TOKEN, isouter=True)
    query = query.where(tokens.c.revoked_at.is_(None))
    if user_id is not None:
        query = query.where(tokens.c.user_id == user_id)
    if after is not None:
        query = query.where(tokens.c.id < after)
    with context.database.read() as connection:
        return ListedToken.all(connection, query.order_by(tokens.c.id.desc()).limit(limit))


def revoke_token(context: Context, token_id: str, *, actor: Actor = SERVER) -> None:
    """Revoke a token and the tokens made with it; their sessions, invitations and commands end.

    Raises:
        NotFoundError: no token has this id, it is already revoked, or it belongs to another user
            and the actor lacks `tokens:admin`.
        ConflictError: the token is the admin token, which only the server's command line replaces.
    """
    missing = NotFoundError(f"no token has the id {token_id!r}")
    with context.database.write() as connection:
        its = (tokens.c.id == token_id, tokens.c.revoked_at.is_(None))
        columns = (tokens.c.user_id, tokens.c.kind, tokens.c.name)
        row = connection.execute(select(*columns).where(*its)).one_or_none()
        if row is None:
            raise missing
        if row.user_id != actor.user_id and not actor.may(Permission.TOKENS_ADMIN):
            raise missing
        if row.kind == TokenKind.ADMIN:
            raise ConflictError(
                "the admin token cannot be revoked; `python -m server admin-token` replaces it"
            )
        lock_users(connection, [row.user_id])
        query = select(tokens.c.id).where(*its).with_for_update()
        if connection.execute(query).one_or_none() is None:
            raise missing
        end_tokens(connection, tokens.c.id == token_id, context.now())
        note_change(before={"name": row.name, "kind": row.kind})


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


def _check_room(connection: Connection, new: Mapping[str, Any]) -> None:
    """Raise `ConflictError` if the user of a new API token has `MAX_TOKENS` valid ones.

    The tokens of the built-in user belong to different people and have no limit.
    """
    if new["user_id"] == ADMIN_USER_ID:
        return
    theirs = (tokens.c.user_id == new["user_id"]) & (tokens.c.kind == TokenKind.API)
    count = select(func.count()).select_from(tokens).where(theirs, is_valid(new["created_at"]))
    if (connection.scalar(count) or 0) >= MAX_TOKENS:
        raise ConflictError(f"you have {MAX_TOKENS} API tokens, the maximum: revoke one first")


def _name_is_taken(connection: Connection, new: Mapping[str, Any]) -> bool:
    """Return whether the user of a new API token has another valid one with this name."""
    is_named = (tokens.c.name == new["name"]) & (tokens.c.kind == TokenKind.API)
    of_user = tokens.c.user_id == new["user_id"]
    taken = select(tokens.c.id).where(is_named, of_user, is_valid(new["created_at"])).limit(1)
    return connection.execute(taken).first() is not None


def _until(connection: Connection, wanted: datetime, actor: Actor) -> datetime:
    """Return the end of a new token: that of its maker, if that is earlier.

    The maker is a token, or a session of the issuer whose person the server cannot check again.
    """
    of_token = select(tokens.c.expires_at).where(tokens.c.id == actor.token_id)
    is_checked = exists().where(
        identities.c.user_id == sessions.c.user_id, identities.c.refresh_token.is_not(None)
    )
    of_session = select(sessions.c.expires_at).where(
        sessions.c.id == actor.session_id, sessions.c.by_issuer, ~is_checked
    )
    ends: list[datetime | None] = [
        connection.scalar(query)
        for query in (of_token, of_session)  # two queries
    ]
    return min([wanted, *(each for each in ends if each is not None)])
