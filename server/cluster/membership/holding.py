"""The hold of `members:write` in a project, while a transaction changes who has which role."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, or_, select

from server.api.auth.principals import hold_token
from server.core.context import Context
from server.core.people.user_tables import users
from server.core.subject import Actor
from trainyard.protocol.rest.access import Permission


def hold_members(
    context: Context,
    connection: Connection,
    project: str,
    *,
    whom: Collection[str] | ColumnElement[bool],
    actor: Actor,
) -> None:
    """Lock users and the actor in one order, and hold the actor's `members:write` in a project.

    Args:
        context: the context.
        connection: the transaction, which locks the project later (`write_as` has the order).
        project: name of the project.
        whom: ids of the users whose roles change, or a condition on their rows.
        actor: the actor of the request.

    Raises:
        ForbiddenError: the actor no longer has the permission.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    theirs = whom if isinstance(whom, ColumnElement) else users.c.id.in_(sorted(whom))
    locked = select(users.c.id).where(or_(theirs, users.c.id == actor.user_id))
    connection.execute(locked.order_by(users.c.id).with_for_update()).all()
    needed = Permission.MEMBERS_WRITE
    hold_token(connection, actor, context.now(), permission=needed, project=project)
