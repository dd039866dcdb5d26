"""Tables of members, and the roles of a user in projects as columns of a query."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import (
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    null,
    or_,
    select,
    type_coerce,
)

from server.core.database.column_types import UtcDateTime
from server.core.database.scheduler_tables import projects
from server.core.database.schema import ID, choice, metadata, one_of
from server.core.people.identity_tables import group_roles, user_groups
from server.core.people.user_tables import users
from server.core.subject import ADMIN_USER_ID
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.views import ClusterRole, UserKind

# Roles of users in projects. A service account has one row, in its own project.
members = Table(
    "members",
    metadata,
    Column(
        "project", String(80), ForeignKey("projects.name", ondelete="CASCADE"), primary_key=True
    ),
    Column("user_id", ID, ForeignKey("users.id"), primary_key=True, index=True),
    Column("role", choice(ProjectRole), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    # Own limits of the user; null for the limits of the project.
    Column("max_slots", Integer),
    Column("max_running", Integer),
    one_of("role", ProjectRole),
)
HAS_OWN_LIMITS = or_(members.c.max_slots.is_not(None), members.c.max_running.is_not(None))
"""SQL condition that a member has an own limit."""
# A round of the scheduler reads only members with own limits.
Index(
    "ix_members_limits",
    members.c.project,
    sqlite_where=HAS_OWN_LIMITS,
    postgresql_where=HAS_OWN_LIMITS,
)

_IS_PERSON = and_(users.c.kind == UserKind.PERSON.value, users.c.id != ADMIN_USER_ID)
_OWN = (
    select(
        func.aggregate_strings(members.c.project + "/" + type_coerce(members.c.role, String), " ")
    )
    .where(members.c.user_id == users.c.id)
    .correlate(users)
    .scalar_subquery()
)
_OF_EVERYONE = (
    select(
        func.aggregate_strings(
            projects.c.name + "/" + type_coerce(projects.c.everyone, String), " "
        )
    )
    .where(projects.c.everyone.is_not(None))
    .scalar_subquery()
)
_OF_GROUPS = (
    select(
        func.aggregate_strings(
            group_roles.c.project + "/" + type_coerce(group_roles.c.role, String), " "
        )
    )
    .join(user_groups, user_groups.c.group_name == group_roles.c.group_name)
    .where(
        user_groups.c.user_id == users.c.id,
        user_groups.c.expires_at > bindparam("now", type_=UtcDateTime),
    )
    .correlate(users)
    .scalar_subquery()
)
own_roles = case(
    (users.c.id.is_(None), null()),
    else_=func.coalesce(_OWN, "") + " " + func.coalesce(_OF_GROUPS, ""),
).label("own_roles")
"""Memberships of a query's user and the roles of the user's groups, as text such as `vision/member
speech/viewer`; null for machines. Names of projects contain neither spaces nor slashes. The query
has the parameter `now`, because groups expire."""
everyones_roles = case((or_(users.c.id.is_(None), ~_IS_PERSON), null()), else_=_OF_EVERYONE).label(
    "everyones_roles"
)
"""Roles that every active person has, in the same form; null for machines and service accounts."""


def parse_roles(*texts: str | None) -> tuple[tuple[str, ProjectRole], ...]:
    """Return the greatest role by project, sorted by project; None stands for no roles.

    A role that this version does not know gives nothing.
    """
    order = [*ProjectRole]
    found: dict[str, ProjectRole] = {}
    for each in " ".join(text or "" for text in texts).split():
        project, _, role = each.rpartition("/")
        if role in order and (
            project not in found or order.index(found[project]) < order.index(ProjectRole(role))
        ):
            found[project] = ProjectRole(role)
    return tuple(sorted(found.items()))


def has_role(
    user_id: ColumnElement[str],
    project: ColumnElement[str],
    roles: Sequence[ProjectRole],
    *,
    now: datetime,
) -> ColumnElement[bool]:
    """Return the SQL condition that the user of a row has one of these roles in its project now.

    As `parse_roles` of `own_roles` and `everyones_roles`, for many users at once. A user with the
    role `admin` has every role.
    """
    its_user = users.c.id == user_id
    own = (members.c.user_id == user_id) & (members.c.project == project)
    of_everyone = (projects.c.name == project) & projects.c.everyone.in_(roles)
    of_group = (
        (user_groups.c.user_id == user_id)
        & (user_groups.c.expires_at > now)
        & (group_roles.c.group_name == user_groups.c.group_name)
        & (group_roles.c.project == project)
    )
    return or_(
        exists().where(own, members.c.role.in_(roles)),
        exists().where(of_group, group_roles.c.role.in_(roles)),
        exists().where(its_user, users.c.role == ClusterRole.ADMIN.value),
        exists().where(its_user, _IS_PERSON) & exists().where(of_everyone),
    )
