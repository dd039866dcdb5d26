"""New versions of secrets and deletions, each with an event of the project."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from server.api.auth.endings import write_as
from server.api.auth.principals import hold_token, lock_users
from server.cluster.named_secrets.queries import (
    Secret,
    SecretHolder,
    no_secret,
    secret_named,
    secret_view,
)
from server.cluster.projects.queries import lock_project
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.errors import ConflictError, InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.people.secret_tables import secret_versions, secrets
from server.core.people.visible_projects import check_visible
from server.core.subject import ADMIN_USER_ID, Actor, Subject
from trainyard.base.names import NAME
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.secret_views import (
    SecretChanged,
    SecretView,
    short_value_warning,
)

MAX_SECRETS = 200
"""Maximum number of secrets of a project or a user."""
MAX_NAMES = 1000
"""Maximum number of names, deleted secrets included: a deletion keeps the row with the number."""
LONGEST_NAME = 80
"""Maximum length of a name, in characters."""
VERSIONS_KEPT = 10
"""Number of versions of a secret that are kept; a new version deletes older ones."""


def put_project_secret(
    context: Context, project: str, name: str, *, value: str, actor: Actor
) -> SecretView:
    """Store a new version of a secret of a project.

    Raises:
        NotFoundError: the actor sees no such project.
        ForbiddenError: the actor lacks `secrets:write` in the project.
        InvalidRequestError: the name is not legal.
        ConflictError: the project has `MAX_SECRETS` secrets, or `MAX_NAMES` names.
        KeyFileError: the key file is missing or damaged.
        UnauthenticatedError: the actor's access has changed meanwhile.
    """
    with write_as(context, actor) as connection:
        _lock(connection, project, actor=actor)
        view = _put(
            context, connection, SecretHolder(project=project), name=name, value=value, by=actor
        )
        message = f"secret {name} has version {view.version}"
        data = SecretChanged(project=project, name=name, version=view.version)
        append_event(context, connection, NewEvent(data, actor, Subject(project=project), message))
        return view


def delete_project_secret(context: Context, project: str, name: str, *, actor: Actor) -> None:
    """Delete all versions of a secret of a project; jobs that refer to it no longer start.

    Raises:
        NotFoundError: the actor sees no such project, or the project has no such secret.
        ForbiddenError: the actor lacks `secrets:write` in the project.
        UnauthenticatedError: the actor's access has changed meanwhile.
    """
    with write_as(context, actor) as connection:
        _lock(connection, project, actor=actor)
        _delete(context, connection, SecretHolder(project=project), name=name)
        data = SecretChanged(project=project, name=name, version=None)
        message = f"secret {name} is deleted"
        append_event(context, connection, NewEvent(data, actor, Subject(project=project), message))


def put_own_secret(context: Context, name: str, *, value: str, actor: Actor) -> SecretView:
    """Store a new version of an own secret of the actor's user.

    Raises:
        InvalidRequestError: the name is not legal.
        ConflictError: the user is built in, or has `MAX_SECRETS` secrets or `MAX_NAMES` names.
        KeyFileError: the key file is missing or damaged.
        UnauthenticatedError: the actor's access has changed meanwhile.
    """
    if actor.owner_id == ADMIN_USER_ID:
        raise ConflictError(
            "the built-in user has no own secrets, because its tokens may stand for different "
            "people; store a secret of a project"
        )
    with context.database.write() as connection:
        lock_users(connection, [actor.user_id])  # so that own secrets change one after another
        hold_token(connection, actor, context.now())
        holder = SecretHolder(user_id=actor.owner_id)
        return _put(context, connection, holder, name=name, value=value, by=actor)


def delete_own_secret(context: Context, name: str, *, actor: Actor) -> None:
    """Delete all versions of an own secret; jobs that refer to it no longer start.

    Raises:
        NotFoundError: the user has no such secret.
        UnauthenticatedError: the actor's access has changed meanwhile.
    """
    with context.database.write() as connection:
        lock_users(connection, [actor.user_id])  # so that own secrets change one after another
        hold_token(connection, actor, context.now())
        _delete(context, connection, SecretHolder(user_id=actor.owner_id), name=name)


def purpose_of(secret_id: str, version: int) -> str:
    """Return the purpose for which a version is encrypted.

    It binds the ciphertext to its row, so that a writer of the database cannot deliver the value of
    another secret.
    """
    return f"secret {secret_id}/{version}"


def _lock(connection: Connection, project: str, *, actor: Actor) -> None:
    """Lock a project, so that its secrets change one after another."""
    check_visible(connection, project, scope=actor.scope, permission=Permission.SECRETS_WRITE)
    lock_project(connection, project)


def _put(
    context: Context,
    connection: Connection,
    holder: SecretHolder,
    *,
    name: str,
    value: str,
    by: Actor,
) -> SecretView:
    """Store a version; the caller holds the lock of the project or the user.

    Raises:
        InvalidRequestError: the name is not legal.
        ConflictError: the holder has too many secrets or names.
        KeyFileError: the key file is missing or damaged.
    """
    if len(name) > LONGEST_NAME or re.fullmatch(NAME, name) is None:
        detail = (
            f"{name[: LONGEST_NAME + 1]!r} is no name of a secret; legal: letters, digits, '.', "
            f"'_' and '-', a letter or digit first, at most {LONGEST_NAME}"
        )
        raise InvalidRequestError.at("path/secret", detail)
    now, former = context.now(), secret_named(connection, holder, name)
    if former is None or former.deleted_at is not None:
        _refuse_another(connection, holder, is_new_name=former is None)
    version = 1 if former is None else former.version + 1
    secret_id = context.new_id() if former is None else former.id
    if former is None:
        row = {
            "id": secret_id,
            "project": holder.project,
            "user_id": holder.user_id,
            "name": name,
            "version": version,
            "created_at": now,
        }
        connection.execute(insert(secrets).values(row))
    else:
        changed: dict[str, Any] = {"version": version, "deleted_at": None}
        if former.deleted_at is not None:
            changed |= {"created_at": now}
        connection.execute(update(secrets).where(secrets.c.id == secret_id).values(changed))
        old = secret_versions.c.version <= version - VERSIONS_KEPT
        connection.execute(
            delete(secret_versions).where(secret_versions.c.secret_id == secret_id, old)
        )
    connection.execute(
        insert(secret_versions).values(
            secret_id=secret_id,
            version=version,
            ciphertext=context.secrets.seal_text(value, purpose=purpose_of(secret_id, version)),
            created_at=now,
            created_by=by.name,
        )
    )
    note_change(after={"name": name, "version": version})
    stored = Secret.one(connection, Secret.select().where(secrets.c.id == secret_id))
    view = secret_view(connection, stored)
    return view.model_copy(update={"warning": short_value_warning(value)})


def _refuse_another(connection: Connection, holder: SecretHolder, *, is_new_name: bool) -> None:
    counts = select(func.count(), func.count(secrets.c.deleted_at)).where(holder.holds)
    names, deleted = connection.execute(counts).one()
    if names - deleted >= MAX_SECRETS:
        raise ConflictError(f"there are {MAX_SECRETS} secrets, the most that are legal")
    if is_new_name and names >= MAX_NAMES:
        raise ConflictError(
            f"there are {MAX_NAMES:,} names, those of deleted secrets included, the most that are "
            "legal; use the name of a deleted one"
        )


def _delete(context: Context, connection: Connection, holder: SecretHolder, *, name: str) -> None:
    secret = secret_named(connection, holder, name)
    if secret is None or secret.deleted_at is not None:
        raise no_secret(name)
    connection.execute(delete(secret_versions).where(secret_versions.c.secret_id == secret.id))
    gone = update(secrets).where(secrets.c.id == secret.id)
    connection.execute(gone.values(deleted_at=context.now()))
    note_change(before={"name": name, "version": secret.version})
