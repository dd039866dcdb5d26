"""Reads of users: their views, their names by id, and the ways to log in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import Connection, Table, and_, exists, func, select

from server.api.auth.principals import IS_ACTIVE, Principal
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import tokens
from server.core.errors import NotFoundError
from server.core.people.identity_tables import identities
from server.core.people.member_tables import members
from server.core.people.user_tables import invitations, sessions, users
from server.core.subject import ADMIN_USER_ID
from trainyard.protocol.user_accounts.views import (
    ClusterRole,
    LoginWay,
    LoginWays,
    SessionUser,
    UserKind,
    UserState,
    UserView,
)

_HAS_PASSWORD = users.c.password.is_not(None).label("has_password")
# A service account that ends loses its only role for good (`end_accounts`).
_HAS_ENDED = and_(
    users.c.kind == UserKind.SERVICE.value,
    ~exists().where(members.c.user_id == users.c.id),
).label("has_ended")

_ISSUER = (
    select(identities.c.issuer)
    .where(identities.c.user_id == users.c.id)
    .scalar_subquery()
    .label("issuer")
)


@dataclass(frozen=True, slots=True)
class UserRow(TypedRow):
    """A user without the hash of the password."""

    table: ClassVar[Table] = users
    id: str
    name: str
    email: str | None
    role: ClusterRole
    state: UserState
    has_password: Annotated[bool, _HAS_PASSWORD]
    created_at: datetime
    disabled_at: datetime | None
    kind: UserKind
    project: str | None
    has_ended: Annotated[bool, _HAS_ENDED]
    issuer: Annotated[str | None, _ISSUER]
    unix_account: str | None


def read_user(connection: Connection, user_id: str) -> UserRow:
    """Return a user.

    Raises:
        NotFoundError: no user has this id.
    """
    row = UserRow.one_or_none(connection, UserRow.select().where(users.c.id == user_id))
    if row is None:
        raise NotFoundError(f"no user has the id {user_id!r}")
    return row


def user_view(context: Context, connection: Connection, user_id: str) -> UserView:
    """Return the view of a user.

    Raises:
        NotFoundError: no user has this id.
    """
    return _views(context, connection, [read_user(connection, user_id)])[0]


def list_users(
    context: Context, *, after: str | None, limit: int, name: str | None = None
) -> Sequence[UserView]:
    """Return at most `limit` users with names after `after`, in the order of their names.

    With `name`, only the user of this name is listed.
    """
    query = UserRow.select()
    if name is not None:
        query = query.where(users.c.name == name)
    if after is not None:
        query = query.where(users.c.name > after)
    with context.database.read() as connection:
        rows = UserRow.all(connection, query.order_by(users.c.name).limit(limit))
        return _views(context, connection, rows)


def _views(context: Context, connection: Connection, rows: Sequence[UserRow]) -> list[UserView]:
    """Return the views, with a fixed number of queries for all users."""
    ids = [row.id for row in rows]
    invited = _greatest(
        connection,
        select(invitations.c.user_id, func.max(invitations.c.expires_at))
        .where(
            invitations.c.user_id.in_(ids),
            invitations.c.ended_at.is_(None),
            invitations.c.expires_at > context.now(),
        )
        .group_by(invitations.c.user_id),
    )
    used = [
        _greatest(
            connection,
            select(table.c.user_id, func.max(table.c.last_used_at))
            .where(table.c.user_id.in_(ids), table.c.last_used_at.is_not(None))
            .group_by(table.c.user_id),
        )
        for table in (sessions, tokens)  # two queries
    ]
    return [
        UserView(
            **row.values_for(UserView),
            is_built_in=row.id == ADMIN_USER_ID,
            invited_until=invited.get(row.id),
            last_used_at=max((each[row.id] for each in used if row.id in each), default=None),
        )
        for row in rows
    ]


def _greatest(connection: Connection, query: Any) -> dict[str, datetime]:
    return {row[0]: row[1] for row in connection.execute(query)}


def names_of(context: Context, user_ids: Collection[str]) -> Mapping[str, str]:
    """Return names by user id; names never change, so each is read once per process."""
    known = context.user_names
    if missing := {*user_ids} - known.keys():
        query = select(users.c.id, users.c.name).where(users.c.id.in_(missing))
        with context.database.read() as connection:
            known |= {row.id: row.name for row in connection.execute(query)}
    return known


def is_shared(context: Context) -> bool:
    """Return whether the server has more than one active user."""
    others = select(users.c.id).where(users.c.id != ADMIN_USER_ID, IS_ACTIVE).limit(1)
    with context.database.read() as connection:
        return connection.scalar(others) is not None


def login_ways(context: Context) -> LoginWays:
    """Return the ways to log a browser in: passwords count if an active user has one."""
    query = select(users.c.id).where(IS_ACTIVE, users.c.password.is_not(None)).limit(1)
    with context.database.read() as connection:
        has_password = connection.scalar(query) is not None
    settings = context.settings
    ways = (
        LoginWay(kind="issuer", name=settings.oidc_name) if settings.oidc_issuer else None,
        LoginWay(kind="password") if has_password else None,
        LoginWay(kind="token"),
    )
    return LoginWays(ways=tuple(way for way in ways if way is not None))


def session_user(context: Context, principal: Principal) -> SessionUser | None:
    """Return the user of a session or token, as the caller sees it."""
    if principal.user is None:
        return None
    with context.database.read() as connection:
        row = read_user(connection, principal.user.id)
    return SessionUser(**row.values_for(SessionUser))
