"""Reads of the members of a project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, select

from server.cluster.placement.quotas import UserQuota
from server.cluster.projects.queries import project_row, use_of_users
from server.cluster.projects.quotas import default_of, in_force
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import projects
from server.core.errors import NotFoundError
from server.core.people.identity_tables import group_roles
from server.core.people.member_tables import members
from server.core.people.user_tables import users
from server.core.people.visible_projects import check_visible
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.members import MemberView, UserLimits
from trainyard.protocol.user_accounts.single_sign_on import GroupView
from trainyard.protocol.user_accounts.views import ClusterRole, UserKind, UserState

_OF_USER = users.c.id == members.c.user_id


@dataclass(frozen=True, slots=True)
class Member(TypedRow):
    """A membership with its user."""

    table: ClassVar[Table] = members
    user: Annotated[str, users.c.name.label("user_name")]
    kind: Annotated[UserKind, users.c.kind]
    role: ProjectRole
    since: Annotated[datetime, members.c.created_at]
    max_slots: Annotated[int | None, members.c.max_slots]
    max_running: Annotated[int | None, members.c.max_running]
    user_id: str


@dataclass(frozen=True, slots=True)
class NamedUser(TypedRow):
    """A user who may be a member."""

    table: ClassVar[Table] = users
    id: str
    name: str
    kind: UserKind
    state: UserState
    cluster_role: Annotated[ClusterRole, users.c.role]


def list_members(
    context: Context, project: str, *, scope: Scope, after: str | None, limit: int
) -> Sequence[MemberView]:
    """Return at most `limit` members of a project, sorted by name, that follow the name `after`.

    Raises:
        NotFoundError: no project has this name, or the caller does not see it.
        ForbiddenError: the caller has no role in the project; an operator sees its quotas alone.
    """
    query = Member.select().join(users, _OF_USER).where(members.c.project == project)
    if after is not None:
        query = query.where(users.c.name > after)
    with context.database.read() as connection:
        check_visible(connection, project, scope=scope, permission=Permission.JOBS_READ)
        rows = Member.all(connection, query.order_by(users.c.name).limit(limit))
        return _views(connection, project, rows)


@dataclass(frozen=True, slots=True)
class GroupRole(TypedRow):
    """A group of the issuer with its role."""

    table: ClassVar[Table] = group_roles
    group: Annotated[str, group_roles.c.group_name]
    role: ProjectRole
    since: Annotated[datetime, group_roles.c.created_at]


def list_groups(
    context: Context, project: str, *, scope: Scope, after: str | None, limit: int
) -> Sequence[GroupView]:
    """Return at most `limit` groups with a role, sorted by name, that follow the name `after`.

    Raises:
        NotFoundError: no project has this name, or the caller does not see it.
        ForbiddenError: the caller has no role in the project; an operator sees its quotas alone.
    """
    query = GroupRole.select().where(group_roles.c.project == project)
    if after is not None:
        query = query.where(group_roles.c.group_name > after)
    with context.database.read() as connection:
        check_visible(connection, project, scope=scope, permission=Permission.JOBS_READ)
        ordered = query.order_by(group_roles.c.group_name).limit(limit)
        rows = GroupRole.all(connection, ordered)
    return [GroupView(**row.values_for(GroupView)) for row in rows]


def role_of_group(connection: Connection, project: str, group: str) -> ProjectRole | None:
    """Return the role of a group of the issuer in a project."""
    its = (group_roles.c.project == project) & (group_roles.c.group_name == group)
    found: ProjectRole | None = connection.scalar(select(group_roles.c.role).where(its))
    return found


def member_view(connection: Connection, project: str, user_id: str) -> MemberView:
    """Return a member of a project, which the caller has checked."""
    its = (members.c.project == project) & (members.c.user_id == user_id)
    row = Member.one(connection, Member.select().join(users, _OF_USER).where(its))
    return _views(connection, project, [row])[0]


def _views(connection: Connection, project: str, rows: Sequence[Member]) -> Sequence[MemberView]:
    """Return the views of members, with their limits and the use by their jobs."""
    default, used = default_of(project_row(connection, project)), use_of_users(connection)
    views = []
    for row in rows:
        own = UserQuota(max_slots=row.max_slots, max_running=row.max_running)
        limits, (held, running) = in_force(own, default), used.get((project, row.user_id), (0, 0))
        computed = {
            "effective_max_slots": limits.max_slots,
            "effective_max_running": limits.max_running,
            "held_slots": held,
            "running_jobs": running,
        }
        views.append(MemberView(**row.values_for(MemberView) | computed))
    return views


def own_limits(connection: Connection, project: str, user_id: str) -> UserLimits:
    """Return the own limits of a member; without limits for a user who is no member."""
    its = (members.c.project == project) & (members.c.user_id == user_id)
    row = connection.execute(select(members.c.max_slots, members.c.max_running).where(its)).first()
    return UserLimits() if row is None else UserLimits(**row._mapping)


def user_named(connection: Connection, name: str) -> NamedUser:
    """Return a user.

    Raises:
        NotFoundError: no user has this name.
    """
    query = NamedUser.select().where(users.c.name == name)
    row = NamedUser.one_or_none(connection, query)
    if row is None:
        raise no_user(name)
    return row


def no_user(name: str) -> NotFoundError:
    """Return the error for an unknown user, or for the service account of another project."""
    return NotFoundError(f"no user has the name {name!r}")


def own_role(connection: Connection, project: str, user_id: str) -> ProjectRole | None:
    """Return the role of a user's membership; None without a membership."""
    its = (members.c.project == project) & (members.c.user_id == user_id)
    found: ProjectRole | None = connection.scalar(select(members.c.role).where(its))
    return found


def role_of_everyone(connection: Connection, project: str) -> ProjectRole | None:
    """Return the role that every active person has in a project."""
    query = select(projects.c.everyone).where(projects.c.name == project)
    found: ProjectRole | None = connection.scalar(query)
    return found
