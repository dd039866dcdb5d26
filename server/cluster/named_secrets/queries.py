"""Reads of secrets, without their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from sqlalchemy import ColumnElement, Connection, Table, and_, select

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.errors import NotFoundError
from server.core.people.secret_tables import secret_versions, secrets
from server.core.people.visible_projects import check_visible
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.secret_views import SecretView


@dataclass(frozen=True)
class SecretHolder:
    """The project or the user to which secrets belong; exactly one is set."""

    project: str | None = None
    user_id: str | None = None

    @property
    def holds(self) -> ColumnElement[bool]:
        """SQL condition that a secret belongs to the holder."""
        if self.project is not None:
            return secrets.c.project == self.project
        return secrets.c.user_id == self.user_id


@dataclass(frozen=True, slots=True)
class Secret(TypedRow):
    """A secret, without its versions."""

    table: ClassVar[Table] = secrets
    id: str
    name: str
    version: int
    created_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class SecretVersion(TypedRow):
    """A stored version, without its value."""

    table: ClassVar[Table] = secret_versions
    secret_id: str
    version: int
    stored_at: Annotated[datetime, secret_versions.c.created_at]
    stored_by: Annotated[str, secret_versions.c.created_by]


def list_project_secrets(
    context: Context, project: str, *, scope: Scope, after: str | None, limit: int
) -> Sequence[SecretView]:
    """Return at most `limit` secrets of a project, sorted by name, that follow the name `after`.

    Raises:
        NotFoundError: no project has this name, or the caller does not see it.
        ForbiddenError: the caller lacks `secrets:use` in the project.
    """
    with context.database.read() as connection:
        check_visible(connection, project, scope=scope, permission=Permission.SECRETS_USE)
        return _views(connection, SecretHolder(project=project), after=after, limit=limit)


def list_own_secrets(
    context: Context, user_id: str, *, after: str | None, limit: int
) -> Sequence[SecretView]:
    """Return at most `limit` own secrets of a user, sorted by name, that follow `after`."""
    with context.database.read() as connection:
        return _views(connection, SecretHolder(user_id=user_id), after=after, limit=limit)


def secret_named(connection: Connection, holder: SecretHolder, name: str) -> Secret | None:
    """Return a secret, also a deleted one; None if there was never one of this name."""
    query = Secret.select().where(holder.holds, secrets.c.name == name)
    return Secret.one_or_none(connection, query)


def secret_view(connection: Connection, secret: Secret) -> SecretView:
    """Return the view of a secret that is not deleted."""
    return _view(secret, _versions(connection, [secret.id])[secret.id])


def no_secret(name: str) -> NotFoundError:
    """Return the error for an unknown secret."""
    return NotFoundError(f"no secret has the name {name!r}")


def names_of(connection: Connection, holder: SecretHolder, limit: int) -> Sequence[str]:
    """Return at most `limit` names of secrets, sorted."""
    present = select(secrets.c.name).where(holder.holds, secrets.c.deleted_at.is_(None))
    return connection.scalars(present.order_by(secrets.c.name).limit(limit)).all()


def _views(
    connection: Connection, holder: SecretHolder, *, after: str | None, limit: int
) -> Sequence[SecretView]:
    query = Secret.select().where(and_(holder.holds, secrets.c.deleted_at.is_(None)))
    if after is not None:
        query = query.where(secrets.c.name > after)
    found = Secret.all(connection, query.order_by(secrets.c.name).limit(limit))
    versions = _versions(connection, [each.id for each in found])
    # A deletion between the two queries leaves a secret without versions.
    return [_view(each, versions[each.id]) for each in found if versions[each.id]]


def _versions(connection: Connection, secret_ids: Sequence[str]) -> dict[str, list[SecretVersion]]:
    query = SecretVersion.select().where(secret_versions.c.secret_id.in_(secret_ids))
    found: dict[str, list[SecretVersion]] = {each: [] for each in secret_ids}
    for row in SecretVersion.all(connection, query.order_by(secret_versions.c.version)):
        found[row.secret_id].append(row)
    return found


def _view(secret: Secret, versions: Sequence[SecretVersion]) -> SecretView:
    newest = versions[-1]
    return SecretView(
        name=secret.name,
        version=newest.version,
        versions=tuple(each.version for each in versions),
        created_at=secret.created_at,
        changed_at=newest.stored_at,
        changed_by=newest.stored_by,
    )
