"""Groups of a user at the issuer: stored for a time, with the role in the cluster they give."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, exists, insert, select, update

from server.api.auth.endings import end_beyond_role, end_forbidden_commands
from server.api.auth.principals import lock_users
from server.core.context import Context
from server.core.people.identity_tables import group_roles, user_groups
from server.core.people.user_tables import users
from server.core.settings import Settings
from trainyard.protocol.user_accounts.views import ClusterRole

logger = logging.getLogger(__name__)

KEPT_UNREFRESHED = timedelta(hours=24)
"""Time for which groups count while the issuer is down, since its last reply."""
KEPT_WITHOUT_TOKEN = timedelta(hours=1)
"""Time for which groups count after a login without a refresh token."""
KEPT_WITHOUT_CLAIM = timedelta(minutes=30)
"""Time for which groups count after the first reply without the claim of the groups: with the
pause between two refreshes, a person who has left a group loses its role within an hour.
"""
EXPIRED_AT_ONCE = 200
"""Maximum number of users whose expired groups one run removes."""


def store_groups(
    context: Context,
    connection: Connection,
    user_id: str,
    *,
    groups: Sequence[str] | None,
    lasting: timedelta,
) -> None:
    """Replace the groups of a user, whom the caller has locked; end what they no longer allow.

    If the reply lacks the groups (None), the former ones expire after `KEPT_WITHOUT_CLAIM`.
    """
    now = context.now()
    if groups is None:
        ends_at = now + KEPT_WITHOUT_CLAIM
        logger.warning("the issuer gave no groups of user %s: the former ones expire", user_id)
        later = (user_groups.c.user_id == user_id) & (user_groups.c.expires_at > ends_at)
        connection.execute(update(user_groups).where(later).values(expires_at=ends_at))
        _apply(context, connection, user_id, groups=_left(connection, user_id, now), now=now)
        return
    connection.execute(delete(user_groups).where(user_groups.c.user_id == user_id))
    rows = [
        {"user_id": user_id, "group_name": name, "expires_at": now + lasting} for name in groups
    ]
    if rows:
        connection.execute(insert(user_groups), rows)
    _apply(context, connection, user_id, groups=groups, now=now)


def expire_groups(context: Context) -> int:
    """Remove expired groups of at most `EXPIRED_AT_ONCE` users; return the number of these users.

    Expired groups give no roles in projects in any case; this ends open commands and the role in
    the cluster.
    """
    now = context.now()
    over = user_groups.c.expires_at <= now
    query = select(user_groups.c.user_id).where(over).distinct().limit(EXPIRED_AT_ONCE)
    with context.database.read() as connection:
        found = connection.scalars(query).all()
    for user_id in found:
        with context.database.write() as connection:
            lock_users(connection, [user_id])
            connection.execute(delete(user_groups).where(user_groups.c.user_id == user_id, over))
            _apply(context, connection, user_id, groups=_left(connection, user_id, now), now=now)
    return len(found)


def _left(connection: Connection, user_id: str, now: datetime) -> Sequence[str]:
    """Return the groups of a user that have not expired."""
    its = (user_groups.c.user_id == user_id) & (user_groups.c.expires_at > now)
    return connection.scalars(select(user_groups.c.group_name).where(its)).all()


def have_role(connection: Connection, settings: Settings, groups: Sequence[str]) -> bool:
    """Return whether one of these groups has a role, in a project or in the cluster."""
    if {settings.oidc_admin_group, settings.oidc_operator_group} & {*groups}:
        return True
    named = exists().where(group_roles.c.group_name.in_(groups))
    return bool(connection.scalar(select(named)))


def gives_cluster_roles(settings: Settings) -> bool:
    """Return whether the groups of the issuer give its users their roles in the cluster."""
    return settings.oidc_admin_group is not None or settings.oidc_operator_group is not None


def cluster_role(settings: Settings, groups: Sequence[str]) -> ClusterRole:
    """Return the role in the cluster that groups give."""
    if settings.oidc_admin_group in groups:
        return ClusterRole.ADMIN
    if settings.oidc_operator_group in groups:
        return ClusterRole.OPERATOR
    return ClusterRole.USER


def _apply(
    context: Context,
    connection: Connection,
    user_id: str,
    *,
    groups: Sequence[str],
    now: datetime,
) -> None:
    if gives_cluster_roles(context.settings):
        role = cluster_role(context.settings, groups)
        its = update(users).where(users.c.id == user_id, users.c.role != role)
        if connection.execute(its.values(role=role)).rowcount:
            logger.info("the groups of user %s give the role %s in the cluster", user_id, role)
            end_beyond_role(connection, user_id, role, now=now)
    end_forbidden_commands(connection, now, user_id=user_id)
