"""The check of a caller's permission in a project that a request names."""

from __future__ import annotations

from sqlalchemy import Connection, select

from server.core.audit.request_rows import note_project
from server.core.database.scheduler_tables import projects
from server.core.errors import NotFoundError
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission


def check_visible(
    connection: Connection, name: str, *, scope: Scope, permission: Permission
) -> None:
    """Check that a project exists, and that the caller has a permission in it.

    Raises:
        NotFoundError: no project has this name, or the caller has no role in it.
        ForbiddenError: the caller has a role in the project, and lacks the permission.
    """
    query = select(projects.c.name).where(projects.c.name == name)
    if connection.scalar(query) is None or not scope.knows(name):
        raise no_project(name)
    note_project(name)
    if not scope.may(permission, name):
        raise scope.refusal([permission], name)


def no_project(name: str) -> NotFoundError:
    """Return the error for an unknown or hidden project."""
    return NotFoundError(f"no project has the name {name!r}")
