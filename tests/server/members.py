"""Users with roles in projects, for tests of what they see."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, insert, update

from server.api.auth.permissions import Roles, scope_of
from server.api.auth.tokens import TokenKind, hash_token, make_token
from server.cluster.projects.service import create_project
from server.core.context import Context
from server.core.database.scheduler_tables import projects
from server.core.database.tables import tokens
from server.core.errors import ConflictError
from server.core.people.member_tables import members
from server.core.people.user_tables import users
from server.core.visibility.scope import Scope
from tests.actors import ADMIN
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRequest, ProjectRole
from trainyard.protocol.user_accounts.views import ClusterRole, UserKind, UserState

OURS, THEIRS = "ours", "theirs"
"""Two projects; tests give roles in the first one."""


def scope_with(*, cluster: ClusterRole = ClusterRole.USER, **roles: ProjectRole | str) -> Scope:
    """Return the scope of a user with these roles, by project."""
    return scope_of(
        Roles(cluster, tuple((name, ProjectRole(role)) for name, role in roles.items()))
    )


def add_projects(context: Context, *names: str) -> None:
    """Create projects, and take the role of everyone in the default project away."""
    for name in names or (OURS, THEIRS):
        try:
            create_project(context, ProjectRequest(name=name), actor=ADMIN)
        except ConflictError:
            continue
    with context.database.write() as connection:
        connection.execute(update(projects).values(everyone=None))


def add_user(
    context: Context,
    name: str,
    roles: Mapping[str, ProjectRole | str] | None = None,
    *,
    cluster: ClusterRole = ClusterRole.USER,
    kind: UserKind = UserKind.PERSON,
    project: str | None = None,
    scopes: tuple[Permission, ...] | None = None,
) -> str:
    """Store a user with roles by project; return the text of a token of this user."""
    user_id, token = context.new_id(), make_token(TokenKind.API)
    user = {
        "id": user_id,
        "name": name,
        "role": cluster,
        "state": UserState.ACTIVE,
        "created_at": context.now(),
        "kind": kind,
        "project": project,
    }
    row = {
        "id": context.new_id(),
        "name": f"of {name}",
        "kind": TokenKind.API,
        "hash": hash_token(token),
        "created_at": context.now(),
        "scopes": None if scopes is None else list(scopes),
        "user_id": user_id,
    }
    with context.database.write() as connection:
        connection.execute(insert(users).values(user))
        connection.execute(insert(tokens).values(row))
    for project_name, role in (roles or {}).items():
        set_role(context, user_id, project_name, role)
    return token


def set_role(context: Context, user_id: str, project: str, role: ProjectRole | str | None) -> None:
    """Give a user a role in a project, or take it away with None."""
    with context.database.write() as connection:
        its = (members.c.user_id == user_id) & (members.c.project == project)
        connection.execute(delete(members).where(its))
        if role is not None:
            row = {"project": project, "user_id": user_id, "role": role}
            connection.execute(insert(members).values(**row, created_at=context.now()))
