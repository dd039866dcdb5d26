"""Service accounts: users without a password that belong to a project (docs/members.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, insert, update
from sqlalchemy.exc import IntegrityError

from server.api.auth.endings import end_access
from server.api.auth.principals import hold_token, lock_users
from server.api.auth.service import RESERVED_NAMES, ListedToken, create_token
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.people.member_tables import members
from server.core.people.user_tables import users
from server.core.people.visible_projects import check_visible
from server.core.subject import Actor
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission, TokenRequest
from trainyard.protocol.rest.members import (
    ServiceAccountRequest,
    ServiceAccountView,
    ServiceTokenRequest,
)
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.views import ClusterRole, UserKind, UserState


@dataclass(frozen=True, slots=True)
class ServiceAccount(TypedRow):
    """A service account with its role in its project."""

    table: ClassVar[Table] = users
    id: str
    name: str
    state: UserState
    created_at: datetime
    role: Annotated[ProjectRole, members.c.role]

    @property
    def view(self) -> ServiceAccountView:
        """View of the account."""
        return ServiceAccountView(**self.values_for(ServiceAccountView))


def list_accounts(
    context: Context, project: str, *, scope: Scope, after: str | None, limit: int
) -> Sequence[ServiceAccountView]:
    """Return at most `limit` active accounts of a project, sorted by name, after the name `after`.

    Raises:
        NotFoundError: no project has this name, or the caller has no role in it.
        ForbiddenError: the caller lacks `members:write` in the project.
    """
    query = _of_project(project, _is_active())
    if after is not None:
        query = query.where(users.c.name > after)
    with context.database.read() as connection:
        check_visible(connection, project, scope=scope, permission=Permission.MEMBERS_WRITE)
        rows = ServiceAccount.all(connection, query.order_by(users.c.name).limit(limit))
    return [row.view for row in rows]


def create_account(
    context: Context, connection: Connection, project: str, *, request: ServiceAccountRequest
) -> ServiceAccountView:
    """Store an account with its role in its project, in the caller's transaction.

    Raises:
        InvalidRequestError: the name is reserved.
        ConflictError: a user has, or had, this name.
    """
    if request.name in RESERVED_NAMES:
        raise InvalidRequestError.at(
            "/name", f"{request.name!r} is reserved; so are {', '.join(sorted(RESERVED_NAMES))}"
        )
    user_id, now = context.new_id(), context.now()
    row = {
        "id": user_id,
        "name": request.name,
        "role": ClusterRole.USER,
        "state": UserState.ACTIVE,
        "kind": UserKind.SERVICE,
        "project": project,
        "created_at": now,
    }
    try:
        connection.execute(insert(users).values(row))
    except IntegrityError:
        raise ConflictError(
            f"a user is or was named {request.name!r}: names are never given twice; take another"
        ) from None
    member = {"project": project, "user_id": user_id, "role": request.role, "created_at": now}
    connection.execute(insert(members).values(member))
    return one_account(connection, project, request.name).view


def one_account(connection: Connection, project: str, name: str) -> ServiceAccount:
    """Return an active account of a project.

    Raises:
        NotFoundError: the project has no such account.
    """
    query = _of_project(project, _is_active(), users.c.name == name)
    row = ServiceAccount.one_or_none(connection, query)
    if row is None:
        raise NotFoundError(f"project {project!r} has no service account with the name {name!r}")
    return row


def end_account(context: Context, connection: Connection, account: ServiceAccount) -> None:
    """Disable an account for good, and revoke its tokens; the caller has locked its user."""
    now = context.now()
    end_access(connection, account.id, now)
    ended = update(users).where(users.c.id == account.id)
    connection.execute(ended.values(state=UserState.DISABLED, disabled_at=now))
    connection.execute(delete(members).where(members.c.user_id == account.id))


def end_accounts_of(context: Context, connection: Connection, project: str) -> None:
    """End all accounts of a project that is being deleted."""
    accounts = ServiceAccount.all(connection, _of_project(project, _is_active()))
    lock_users(connection, [account.id for account in accounts])
    for account in accounts:  # a project has few
        end_account(context, connection, account)


def create_account_token(
    context: Context, project: str, name: str, *, request: ServiceTokenRequest, actor: Actor
) -> tuple[ListedToken, str]:
    """Create a token of an account; return its row and its secret, which is not stored.

    Raises:
        NotFoundError: the actor sees no such project, or the project has no such account.
        ForbiddenError: the actor lacks `members:write` in the project, or the token would have
            permissions that the actor does not have.
        ConflictError: another token of the account has this name.
        UnauthenticatedError: the actor's token has ended meanwhile.
    """
    may = Permission.MEMBERS_WRITE
    with context.database.read() as connection:
        check_visible(connection, project, scope=actor.scope, permission=may)
        account = one_account(connection, project, name)
    wanted = TokenRequest(
        name=request.name, scopes=request.scopes, expires_in_seconds=request.expires_in_seconds
    )
    owner = replace(actor, user_id=account.id, user_name=account.name)
    hold = partial(_hold, context=context, account=account, project=project, actor=actor)
    return create_token(context, wanted, actor=owner, hold=hold)


def _hold(
    connection: Connection,
    *,
    context: Context,
    account: ServiceAccount,
    project: str,
    actor: Actor,
) -> None:
    """Lock account and actor, so that the token cannot outlive the end of either."""
    lock_users(connection, [account.id, actor.user_id])
    one_account(connection, project, account.name)
    hold_token(connection, actor, context.now())


def _is_active() -> ColumnElement[bool]:
    return users.c.state == UserState.ACTIVE.value


def _of_project(project: str, *conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    its = (members.c.user_id == users.c.id) & (members.c.project == project)
    query = ServiceAccount.select().join(members, its)
    is_service = users.c.kind == UserKind.SERVICE.value
    return query.where(is_service, users.c.project == project, *conditions)
