"""The quotas of projects and the limits of their users, read from the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Connection, or_, select

from server.cluster.placement.quotas import Quota, UserQuota, UserQuotas
from server.cluster.projects.queries import (
    HAS_QUOTA,
    LIMITS_USERS,
    Project,
    held_slots,
    use_of_users,
)
from server.cluster.projects.usage import ReadUsage, read_usage
from server.core.people.member_tables import HAS_OWN_LIMITS, members
from server.core.subject import ADMIN_USER_ID


def read_quotas(
    connection: Connection, now: datetime, *, usage: ReadUsage = read_usage
) -> Mapping[str, Quota]:
    """Return quotas by project; projects without a quota and without limits are omitted."""
    rows = Project.all(connection, Project.select().where(or_(HAS_QUOTA, LIMITS_USERS)))
    if not rows:
        return {}
    hours = {
        row.name: row.slot_hours_per_month for row in rows if row.slot_hours_per_month is not None
    }
    used = usage(connection, now, hours.keys()) if hours else {}
    month = now.astimezone(UTC).strftime("%B")
    used_up = {
        name: f"project {name} has used its {most:,.10g} slot-hours of {month}"
        for name, most in hours.items()
        if used.get(name, 0.0) >= most
    }
    held, users = held_slots(connection), _users_of(connection, rows)
    return {
        row.name: Quota(
            held.get(row.name, 0), row.max_slots, used_up.get(row.name), users.get(row.name)
        )
        for row in rows
    }


def read_user_quotas(connection: Connection) -> Mapping[str, UserQuotas]:
    """Return the limits of users by project; projects without such limits are omitted."""
    return _users_of(connection, Project.all(connection, Project.select().where(LIMITS_USERS)))


def _users_of(connection: Connection, rows: Sequence[Project]) -> Mapping[str, UserQuotas]:
    """Return the limits of users by project, for projects with a quota or a limit."""
    if not rows:
        return {}
    limits = members.c.max_slots, members.c.max_running
    own_limits = select(members.c.project, members.c.user_id, *limits).where(HAS_OWN_LIMITS)
    own: defaultdict[str, dict[str, UserQuota]] = defaultdict(dict)
    for project, user_id, max_slots, max_running in connection.execute(own_limits):
        own[project][user_id] = UserQuota(max_slots=max_slots, max_running=max_running)
    default = {row.name: default_of(row) for row in rows}
    limited = [name for name in default if name in own or default[name] != UserQuota()]
    if not limited:
        return {}
    used: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for (project, owner_id), use in use_of_users(connection).items():
        used[project][owner_id] = use
    return {
        name: UserQuotas(_known(own[name], used[name], default[name]), default[name])
        for name in limited
    }


def _known(
    own: Mapping[str, UserQuota], used: Mapping[str, tuple[int, int]], default: UserQuota
) -> Mapping[str, UserQuota]:
    """Return limits and use of the users who have own limits or hold slots."""
    found = {
        user_id: replace(in_force(own.get(user_id, default), default), held=held, running=running)
        for user_id in own.keys() | used.keys()
        for held, running in [used.get(user_id, (0, 0))]
    }
    # The tokens of the built-in user may stand for different people, so it has no limits.
    return {**found, ADMIN_USER_ID: UserQuota()}


def default_of(project: Project) -> UserQuota:
    """Return the limits of each user of a project who has no own limits."""
    return UserQuota(max_slots=project.member_max_slots, max_running=project.member_max_running)


def in_force(own: UserQuota, default: UserQuota) -> UserQuota:
    """Return the limits of a user: each own limit, or otherwise that of the project."""
    return UserQuota(
        max_slots=default.max_slots if own.max_slots is None else own.max_slots,
        max_running=default.max_running if own.max_running is None else own.max_running,
    )
