"""Principals of requests: who holds a token or a browser session, and what it permits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

from sqlalchemy import BindParameter, Connection, Select, Table, bindparam, or_, select, update

from server.api.auth.permissions import ALL, Roles, most_scoped, scope_of
from server.api.auth.tokens import TokenKind, hash_token
from server.core.audit.request_rows import CallerIdentity
from server.core.context import Context
from server.core.database.rows import Token, TypedRow
from server.core.database.source_tables import pilots
from server.core.database.tables import tokens
from server.core.errors import ForbiddenError, UnauthenticatedError
from server.core.people.former_holders import EndedCredentialError, holders_of_tokens
from server.core.people.member_tables import everyones_roles, own_roles, parse_roles
from server.core.people.user_tables import sessions, users
from server.core.subject import ADMIN_USER_ID, Actor
from server.core.visibility.scope import NO_SCOPE, Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.views import ClusterRole, UserKind, UserState

LAST_USED_PRECISION = timedelta(minutes=1)
"""Minimum time between two writes of `last_used_at`; otherwise every request would write."""


@dataclass(frozen=True)
class RequestUser:
    """The user of a request."""

    id: str
    name: str
    role: ClusterRole
    kind: UserKind


@dataclass(frozen=True)
class Principal:
    """Holder of the token or the browser session with which a request is authenticated."""

    name: str
    """Name of the token; after a login by password, the name of the user."""
    kind: TokenKind
    """Kind of the token; `api` after a login by password."""
    token_id: str | None
    """Id of the token; None after a login by password."""
    credential_hash: str = field(default="", repr=False)
    """Hash of the request's token, or of the token that opened the browser session. After a login
    by password, hash of the cookie.
    """
    node: str | None = None
    source: str | None = None
    pilot: tuple[str, int] | None = None
    """The pilot that owns the join secret: id of its request for nodes, and its index in this
    request.
    """
    token_allows: frozenset[Permission] = frozenset()
    """Permissions that the token leaves to the user, whatever roles the user has."""
    scope: Scope = field(default=NO_SCOPE, repr=False)
    """Permissions of a person in each project."""
    user: RequestUser | None = None
    """User of a person; None for machines."""
    session_id: str | None = None
    """Id of the browser session; None for a token."""
    session_hash: str | None = field(default=None, repr=False)
    """Hash of the session's cookie; None for a token."""
    by_issuer: bool = False
    """Whether the session was opened by single sign-on."""
    unnoted_use: bool = False
    """Whether `last_used_at` is missing, or older than `LAST_USED_PRECISION`."""

    @property
    def permissions(self) -> frozenset[Permission]:
        """Permissions in the cluster or in at least one project; empty for machines."""
        return self.scope.anywhere

    @property
    def actor(self) -> Actor:
        """The actor that is recorded for the request's changes."""
        user = self.user
        is_built_in = user is None or user.id == ADMIN_USER_ID
        return Actor(
            self.name if user is None or is_built_in else user.name,
            self.token_id,
            is_admin=self.kind is TokenKind.ADMIN,
            user_id=None if user is None else user.id,
            user_name=None if user is None else user.name,
            role=None if user is None else user.role,
            session_id=self.session_id,
            credential=self._words(is_built_in=is_built_in),
            credential_hash=self.credential_hash,
            permissions=self.permissions,
            token_allows=self.token_allows,
            scope=self.scope,
        )

    def _words(self, *, is_built_in: bool) -> str:
        if self.token_id is None:
            return f"the session of {self.name}"
        of = "" if is_built_in or self.user is None else f" of {self.user.name}"
        return f"the token {self.name!r}{of}"


@dataclass(frozen=True, slots=True)
class GivenToken(Token):
    """A stored token with its hash and its user."""

    hash: str
    user_name: Annotated[str | None, users.c.name]
    role: Annotated[ClusterRole | None, users.c.role]
    user_kind: Annotated[UserKind | None, users.c.kind.label("user_kind")]
    own_roles: Annotated[str | None, own_roles]
    everyones_roles: Annotated[str | None, everyones_roles]

    @property
    def principal(self) -> Principal:
        """The holder of the token."""
        principal = Principal(
            name=self.name,
            kind=TokenKind(self.kind),
            token_id=self.id,
            credential_hash=self.hash,
            node=self.node,
            source=self.source,
            user=_user(self.user_id, self.user_name, self.role, kind=self.user_kind),
        )
        if self.role is None:
            return principal
        roles = present_roles(self.role, self.own_roles, self.everyones_roles)
        return _permitted(principal, roles, most_of(self.kind, self.scopes))


@dataclass(frozen=True, slots=True)
class GivenSession(TypedRow):
    """A browser session, with its user and with the token that opened it, if any."""

    table: ClassVar[Table] = sessions
    id: str
    hash: str
    expires_at: datetime
    last_used_at: datetime | None
    token_id: str | None
    user_id: str
    user_name: Annotated[str, users.c.name]
    role: Annotated[ClusterRole, users.c.role]
    user_kind: Annotated[UserKind, users.c.kind.label("user_kind")]
    own_roles: Annotated[str | None, own_roles]
    everyones_roles: Annotated[str | None, everyones_roles]
    token_name: Annotated[str | None, tokens.c.name.label("token_name")]
    token_kind: Annotated[str | None, tokens.c.kind]
    token_hash: Annotated[str | None, tokens.c.hash.label("token_hash")]
    scopes: Annotated[list[str] | None, tokens.c.scopes]
    by_issuer: bool

    @property
    def principal(self) -> Principal:
        """The holder of the session."""
        principal = Principal(
            name=self.token_name or self.user_name,
            kind=TokenKind(self.token_kind or TokenKind.API),
            token_id=self.token_id,
            credential_hash=self.token_hash or self.hash,
            user=_user(self.user_id, self.user_name, self.role, kind=self.user_kind),
            session_id=self.id,
            session_hash=self.hash,
            by_issuer=self.by_issuer,
        )
        roles = present_roles(self.role, self.own_roles, self.everyones_roles)
        most = ALL if self.token_kind is None else most_of(self.token_kind, self.scopes)
        return _permitted(principal, roles, most)


def present_roles(role: ClusterRole, *in_projects: str | None) -> Roles:
    """Return roles from a row; `in_projects` are as in `parse_roles`."""
    return Roles(ClusterRole(role), parse_roles(*in_projects))


def most_of(kind: str, scopes: Sequence[str] | None) -> frozenset[Permission]:
    """Return what `most_scoped` returns for the columns of a token."""
    return most_scoped(TokenKind(kind), None if scopes is None else tuple(scopes))


def _permitted(principal: Principal, roles: Roles, most: frozenset[Permission]) -> Principal:
    """Return a person with the permissions of these roles, as far as the token allows them."""
    return replace(principal, token_allows=most, scope=scope_of(roles, most))


def _user(
    user_id: str | None, name: str | None, role: ClusterRole | None, *, kind: UserKind | None
) -> RequestUser | None:
    if user_id is None or name is None or role is None or kind is None:
        return None
    return RequestUser(user_id, name, ClusterRole(role), UserKind(kind))


def is_valid(now: datetime | BindParameter[Any]) -> Any:
    """Return the SQL condition that a token is neither revoked, suspended nor expired."""
    has_time_left = or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now)
    return tokens.c.revoked_at.is_(None) & tokens.c.suspended_at.is_(None) & has_time_left


IS_ACTIVE = users.c.state == UserState.ACTIVE.value
OF_TOKEN = users.c.id == tokens.c.user_id
IS_OF_MACHINE = tokens.c.user_id.is_(None)


def tokens_of(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """Return a query of tokens, restricted to the valid ones among `of_hashes`."""
    return query.join(users, OF_TOKEN, isouter=True).where(
        tokens.c.hash.in_(bindparam("of_hashes", expanding=True)),
        is_valid(bindparam("now")),
        or_(IS_OF_MACHINE, IS_ACTIVE),
        # A node that joins receives secrets, so a user who lost the role admits none.
        or_(
            IS_OF_MACHINE,
            tokens.c.kind != TokenKind.JOIN.value,
            users.c.role == ClusterRole.ADMIN.value,
        ),
    )


def sessions_of(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """Return a query of sessions, restricted to the valid ones among `of_sessions`."""
    of_user = query.join(users, users.c.id == sessions.c.user_id)
    return of_user.join(tokens, tokens.c.id == sessions.c.token_id, isouter=True).where(
        sessions.c.hash.in_(bindparam("of_sessions", expanding=True)),
        sessions.c.expires_at > bindparam("now"),
        IS_ACTIVE,
        or_(sessions.c.token_id.is_(None), tokens.c.id.is_not(None)),
        is_valid(bindparam("now")),  # also true without a token
    )


# Built once, because that takes longer than running it.
_HOLDERS = tokens_of(GivenToken.select())


def find_holders(context: Context, given: Sequence[str]) -> list[Principal | UnauthenticatedError]:
    """For each token, return its holder or an error, with one query for all tokens."""
    now, hashes = context.now(), [hash_token(token) for token in given]
    query = {"of_hashes": [*dict.fromkeys(hashes)], "now": now}
    with context.database.read() as connection:
        rows = {row.hash: row for row in GivenToken.all(connection, _HOLDERS, query)}
        former = holders_of_tokens(connection, [each for each in hashes if each not in rows])
    return [_holder(rows.get(each), now, former=former.get(each)) for each in hashes]


def _holder(
    row: GivenToken | None, now: datetime, *, former: CallerIdentity | None
) -> Principal | UnauthenticatedError:
    if row is None:
        return EndedCredentialError("the token is unknown, expired or revoked", former)
    return replace(row.principal, unnoted_use=is_unnoted(row.last_used_at, now))


def is_unnoted(last_used_at: datetime | None, now: datetime) -> bool:
    """Return whether a use now is to be stored."""
    return last_used_at is None or now - last_used_at >= LAST_USED_PRECISION


def note_uses(context: Context, token_ids: Sequence[str]) -> list[None]:
    """Set `last_used_at` of tokens to now; return one None per token, as group commit requires."""
    its = tokens.c.id.in_({*token_ids})
    # A token that another transaction holds is noted at its next use, so that nothing waits here.
    query = select(tokens.c.id).where(its).with_for_update(key_share=True, skip_locked=True)
    with context.database.write() as connection:
        free = connection.scalars(query).all()
        used = update(tokens).where(tokens.c.id.in_(free))
        connection.execute(used.values(last_used_at=context.now()))
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


def lock_users(connection: Connection, user_ids: Sequence[str | None]) -> None:
    """Lock users until the transaction ends; later transactions wait.

    A transaction that changes users, tokens, sessions or invitations locks its users first, in one
    call, and its tokens after them. So no two of them deadlock.
    """
    ids = sorted({each for each in user_ids if each is not None})
    locked = select(users.c.id).where(users.c.id.in_(ids)).order_by(users.c.id)
    connection.execute(locked.with_for_update()).all()


def scopes_of_users(
    connection: Connection, user_ids: Collection[str], now: datetime
) -> Mapping[str, Scope]:
    """Return the present scopes of users by id; users that are not active are omitted."""
    columns = (users.c.id, users.c.role, own_roles, everyones_roles)
    query = select(*columns).where(users.c.id.in_(sorted(user_ids)), IS_ACTIVE)
    return {
        row.id: scope_of(present_roles(row.role, row.own_roles, row.everyones_roles))
        for row in connection.execute(query, {"now": now})
    }


# Built once, as those above. Roles have a later statement, because one that waits reads old roles.
_OF_ID: BindParameter[str] = bindparam("of_id")
_NOW: BindParameter[datetime] = bindparam("now", type_=tokens.c.expires_at.type)
_HOLD_USER = select(users.c.role).where(users.c.id == _OF_ID, IS_ACTIVE).with_for_update(read=True)
_ROLES = select(users.c.role, own_roles, everyones_roles).where(users.c.id == _OF_ID)
_HOLD_TOKEN = (
    select(tokens.c.kind, tokens.c.scopes)
    .where(tokens.c.hash == bindparam("of_hash"), is_valid(_NOW))
    .with_for_update(read=True)
)
_HOLD_SESSION = (
    select(sessions.c.id)
    .where(sessions.c.id == _OF_ID, sessions.c.expires_at > _NOW)
    .with_for_update(read=True)
)


def hold_token(
    connection: Connection,
    actor: Actor,
    now: datetime,
    *,
    permission: Permission | None = None,
    project: str | None = None,
) -> None:
    """Lock user and token of a request, so that both stay valid until the transaction ends.

    Call this before the transaction stores anything that a revocation must find.

    Args:
        connection: the transaction.
        actor: the actor of the request; nothing is checked for a part of the system.
        now: the present time.
        permission: what the change needs in `project`; None for all that the request had.
        project: the project; None without a permission.

    Raises:
        UnauthenticatedError: the token or session has ended since the request was authenticated.
        ForbiddenError: it has lost the permission since then.
    """
    if actor.credential_hash is None:  # the actor is a part of the system and has no token
        return
    roles = None
    if actor.user_id is not None:
        role = connection.scalar(_HOLD_USER, {"of_id": actor.user_id})
        roles = None if role is None else _present_roles(connection, actor.user_id, now)
    most = _allowed(connection, actor, now)
    if most is None or (roles is None and actor.user_id is not None):
        raise UnauthenticatedError("the token has ended since the request began")
    if roles is None:
        return
    scope = scope_of(roles, most)
    has_kept = scope.covers(actor.scope) if permission is None else scope.may(permission, project)
    if not has_kept:
        raise ForbiddenError("the permissions have changed since the request began")


def _present_roles(connection: Connection, user_id: str, now: datetime) -> Roles:
    row = connection.execute(_ROLES, {"of_id": user_id, "now": now}).one()
    return present_roles(row.role, row.own_roles, row.everyones_roles)


def _allowed(connection: Connection, actor: Actor, now: datetime) -> frozenset[Permission] | None:
    """Lock token and session of an actor; return what they allow, or None if one has ended."""
    most: frozenset[Permission] = ALL
    if actor.token_id is not None:
        given = {"of_hash": actor.credential_hash, "now": now}
        row = connection.execute(_HOLD_TOKEN, given).one_or_none()
        if row is None:
            return None
        most = most_of(row.kind, row.scopes)
    if actor.session_id is not None:
        given = {"of_id": actor.session_id, "now": now}
        if connection.execute(_HOLD_SESSION, given).one_or_none() is None:
            return None
    return most
