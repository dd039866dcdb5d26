"""Service accounts: users without a password that belong to a project (docs/members.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import Connection, Select, Table, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from server.api.auth.endings import end_access
from server.api.auth.principals import lock_users
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.people.member_tables import members
from server.core.people.user_tables import users
from server.core.people.visible_projects import check_visible
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.members import ServiceAccountRequest, ServiceAccountView
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


MAX_ACCOUNTS = 200
"""Maximum number of service accounts of a project, ended ones included: their names stay taken."""
LONGEST_NAME = 64
"""Maximum length of the name of an account with its project, in characters."""


def list_accounts(
    context: Context, project: str, *, scope: Scope, after: str | None, limit: int
) -> Sequence[ServiceAccountView]:
    """Return at most `limit` accounts of a project, sorted by name, after the name `after`.

    Accounts that have ended are omitted.

    Raises:
        NotFoundError: no project has this name, or the caller has no role in it.
        ForbiddenError: the caller lacks `members:write` in the project.
    """
    query = _of_project(project)
    if after is not None:
        query = query.where(users.c.name > after)
    with context.database.read() as connection:
        check_visible(connection, project, scope=scope, permission=Permission.MEMBERS_WRITE)
        rows = ServiceAccount.all(connection, query.order_by(users.c.name).limit(limit))
    return [row.view for row in rows]


def create_account(
    context: Context, connection: Connection, project: str, *, request: ServiceAccountRequest
) -> ServiceAccount:
    """Store an account with its role in its project; the caller has locked the project.

    Raises:
        InvalidRequestError: the name is too long together with the project's.
        ConflictError: an account of the project has, or had, this name; or the project has
            `MAX_ACCOUNTS`.
    """
    name = f"{request.name}@{project}"
    if len(name) > LONGEST_NAME:
        detail = f"{name!r} has {len(name)} characters; legal: at most {LONGEST_NAME}"
        raise InvalidRequestError.at("/name", detail)
    others = select(func.count()).select_from(users).where(users.c.project == project)
    if (connection.scalar(others) or 0) >= MAX_ACCOUNTS:
        raise ConflictError(
            f"project {project!r} has {MAX_ACCOUNTS} service accounts, the maximum, ended ones "
            "included: make another token of one of them"
        )
    user_id, now = context.new_id(), context.now()
    row = {
        "id": user_id,
        "name": name,
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
            f"a service account is or was named {name!r}: names are never given twice; take another"
        ) from None
    member = {"project": project, "user_id": user_id, "role": request.role, "created_at": now}
    connection.execute(insert(members).values(member))
    return one_account(connection, project, name)


def one_account(connection: Connection, project: str, name: str) -> ServiceAccount:
    """Return an account of a project that has not ended; an admin may have disabled it.

    Raises:
        NotFoundError: the project has no such account.
    """
    query = _of_project(project).where(users.c.name == name)
    row = ServiceAccount.one_or_none(connection, query)
    if row is None:
        raise NotFoundError(f"project {project!r} has no service account with the name {name!r}")
    return row


def end_accounts(context: Context, connection: Connection, user_ids: Sequence[str]) -> None:
    """Disable accounts for good, and revoke their tokens; the caller has locked their users."""
    now = context.now()
    end_access(connection, user_ids, now)
    ended = update(users).where(users.c.id.in_(user_ids))
    connection.execute(ended.values(state=UserState.DISABLED, disabled_at=now))
    connection.execute(delete(members).where(members.c.user_id.in_(user_ids)))


def end_accounts_of(context: Context, connection: Connection, project: str) -> None:
    """End all accounts of a project that is being deleted."""
    user_ids = [each.id for each in ServiceAccount.all(connection, _of_project(project))]
    lock_users(connection, user_ids)
    end_accounts(context, connection, user_ids)


def _of_project(project: str) -> Select[*tuple[Any, ...]]:
    its = (members.c.user_id == users.c.id) & (members.c.project == project)
    is_service = users.c.kind == UserKind.SERVICE.value
    return ServiceAccount.select().join(members, its).where(is_service)
