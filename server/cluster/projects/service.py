"""Creation, change and deletion of projects, each with an event."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, delete, exists, insert, select, update

from server.api.accounts.service_accounts import end_accounts_of
from server.api.auth.endings import write_as
from server.api.auth.principals import hold_token, lock_users
from server.cluster.projects.groups import regrouping
from server.cluster.projects.queries import lock_project, project_row, views
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.scheduler_tables import project_usage, projects, retired_projects
from server.core.database.tables import jobs
from server.core.database.upsert import insert_absent
from server.core.errors import ConflictError, InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.people.user_tables import users
from server.core.subject import Actor, Subject
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import (
    ProjectChanged,
    ProjectRequest,
    ProjectSettings,
    ProjectView,
)
from trainyard.spec.job import DEFAULT_PROJECT

NAMES_LISTED = 20
"""Maximum number of project names in the error for an unknown project."""


def create_project(context: Context, request: ProjectRequest, *, actor: Actor) -> ProjectView:
    """Store a project.

    Raises:
        ConflictError: a project has, or had, this name.
    """
    settings = ProjectSettings(**request.model_dump(exclude={"name"}))
    with write_as(context, actor) as connection:
        row = {**request.model_dump(), "created_by": actor.name, "created_at": context.now()}
        if not insert_absent(connection, projects, [row]):
            raise ConflictError(f"there is a project {request.name!r} already")
        # After the insertion, which waits for a concurrent deletion of a project of this name.
        retired = select(retired_projects.c.name).where(retired_projects.c.name == request.name)
        if connection.scalar(retired) is not None:
            raise ConflictError(
                f"a project {request.name!r} was deleted; its operations, events and slot times "
                "remain, so no other project gets its name"
            )
        _record(context, connection, name=request.name, before=None, after=settings, actor=actor)
        return views(
            context, connection, [project_row(connection, request.name)], scope=actor.scope
        )[0]


def change_project(
    context: Context, name: str, change: ProjectSettings, *, actor: Actor
) -> ProjectView:
    """Change the settings that `change` contains; equal values change nothing.

    Running jobs continue even above a lowered `max_slots`.

    Raises:
        NotFoundError: no project has this name.
    """
    with write_as(context, actor) as connection:
        lock_project(connection, name)
        before = project_row(connection, name).settings
        given = {field: getattr(change, field) for field in change.model_fields_set}
        after = before.model_copy(update=given)
        if after != before:
            changed = update(projects).where(projects.c.name == name)
            with regrouping(connection, name):
                connection.execute(changed.values(**after.model_dump()))
            _record(context, connection, name=name, before=before, after=after, actor=actor)
        return views(context, connection, [project_row(connection, name)], scope=actor.scope)[0]


def delete_project(context: Context, name: str, *, actor: Actor) -> None:
    """Delete a project without jobs, with its members, service accounts and slot-hours.

    Raises:
        NotFoundError: no project has this name.
        ConflictError: the project has jobs, or it is the default project.
    """
    with context.database.write() as connection:
        accounts = select(users.c.id).where(users.c.project == name)
        lock_users(connection, [*connection.scalars(accounts), actor.user_id])
        hold_token(connection, actor, context.now())
        lock_project(connection, name, against_new_jobs=True)
        before = project_row(connection, name).settings
        if name == DEFAULT_PROJECT:
            raise ConflictError(f"{name!r} is the project of jobs that name none; it stays")
        if connection.scalar(select(exists().where(jobs.c.project == name))):
            raise ConflictError(f"project {name!r} has jobs; delete them first")
        end_accounts_of(context, connection, name)
        connection.execute(delete(project_usage).where(project_usage.c.project == name))
        connection.execute(delete(projects).where(projects.c.name == name))
        connection.execute(insert(retired_projects).values(name=name))
        _record(context, connection, name=name, before=before, after=None, actor=actor)


def check_project(
    connection: Connection,
    name: str,
    *,
    scope: Scope,
    permission: Permission = Permission.JOBS_WRITE,
    pointer: str = "/project",
) -> None:
    """Check that the project of a spec exists, and that the caller has a permission in it.

    Raises:
        InvalidRequestError: the project does not exist, or is hidden from the caller; the message
            lists existing projects that the caller sees.
        ForbiddenError: the caller sees the project, and lacks the permission.
    """
    present = select(projects.c.name).where(projects.c.name == name)
    if connection.scalar(present) is None or not scope.knows(name):
        visible = select(projects.c.name).where(scope.known(projects.c.name))
        listed = visible.order_by(projects.c.name).limit(NAMES_LISTED + 1)
        names = connection.scalars(listed).all()
        more = " and more" if len(names) > NAMES_LISTED else ""
        legal = f"{', '.join(names[:NAMES_LISTED])}{more}" or "none for you"
        raise InvalidRequestError.at(pointer, f"{name!r} is no project; legal: {legal}")
    if not scope.may(permission, name):
        raise scope.refusal([permission], name)


_KEEP = (
    select(projects.c.name)
    .where(projects.c.name == bindparam("of_name"))
    .with_for_update(read=True, key_share=True)
)


def keep_project(connection: Connection, name: str, *, scopes: Iterable[Scope]) -> None:
    """Lock the project of new jobs, so that it cannot be deleted until the transaction ends.

    `scopes` are those of the submitters.

    Raises:
        InvalidRequestError: no project has this name, or a submitter does not see it.
        ForbiddenError: a submitter lacks `jobs:write` in the project.
    """
    found = connection.execute(_KEEP, {"of_name": name}).one_or_none()
    for scope in scopes:
        if found is None or not scope.may(Permission.JOBS_WRITE, name):
            # Raises the error, unless the project has just been created.
            check_project(connection, name, scope=scope)
    if found is None:
        connection.execute(_KEEP, {"of_name": name})


def _record(
    context: Context,
    connection: Connection,
    *,
    name: str,
    before: ProjectSettings | None,
    after: ProjectSettings | None,
    actor: Actor,
) -> None:
    done = "deleted" if after is None else "created" if before is None else "changed"
    message = f"Project {name} was {done}"
    if after is not None:
        message += f": {_in_words(after)}"
    old, new = (None if each is None else each.model_dump() for each in (before, after))
    changed = {
        each for each in (old or new or {}) if (old or {}).get(each) != (new or {}).get(each)
    }
    note_change(
        object=f"projects/{name}",
        project=name,
        before=None if old is None else {each: old[each] for each in sorted(changed)},
        after=None if new is None else {each: new[each] for each in sorted(changed)},
    )
    data = ProjectChanged(project=name, before=before, after=after)
    append_event(context, connection, NewEvent(data, actor, Subject(project=name), message))


def _in_words(settings: ProjectSettings) -> str:
    parts = [f"weight {settings.weight:g}"]
    if settings.max_slots is not None:
        parts.append(f"at most {settings.max_slots:,} slots")
    if settings.slot_hours_per_month is not None:
        parts.append(f"{settings.slot_hours_per_month:,g} slot-hours a month")
    return ", ".join(parts)
