"""Changes of the limits of users in projects, each with an event of the project."""

from __future__ import annotations

from sqlalchemy import Connection, update

from server.api.auth.endings import write_as
from server.cluster.membership.queries import NamedUser, own_limits
from server.cluster.projects.groups import regrouping
from server.cluster.projects.queries import lock_project, project_row, views
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.scheduler_tables import projects
from server.core.errors import InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.people.member_tables import members
from server.core.people.visible_projects import check_visible
from server.core.subject import Actor, Subject
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectView
from trainyard.protocol.user_accounts.members import LimitsChanged, UserLimits


def limit_users(context: Context, project: str, change: UserLimits, *, actor: Actor) -> ProjectView:
    """Change the limits of each user of a project who has no own limits; running jobs continue.

    Raises:
        NotFoundError: the actor sees no such project.
        ForbiddenError: the actor lacks `members:write` in the project.
        InvalidRequestError: `max_slots` is above that of the project.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    with write_as(context, actor) as connection:
        check_visible(connection, project, scope=actor.scope, permission=Permission.MEMBERS_WRITE)
        lock_project(connection, project)
        row = project_row(connection, project)
        before = UserLimits(max_slots=row.member_max_slots, max_running=row.member_max_running)
        after = _changed(before, change)
        if after != before:
            _check(change, row.max_slots)
            its = update(projects).where(projects.c.name == project)
            values = {f"member_{name}": limit for name, limit in after.model_dump().items()}
            with regrouping(connection, project):
                connection.execute(its.values(values))
            _record(
                context, connection, project, user=None, before=before, after=after, actor=actor
            )
        return views(context, connection, [project_row(connection, project)], scope=actor.scope)[0]


def limit_member(
    context: Context,
    connection: Connection,
    project: str,
    *,
    user: NamedUser,
    change: UserLimits,
    actor: Actor,
) -> None:
    """Change the own limits of a member; the caller has checked the actor and locked the project.

    Raises:
        InvalidRequestError: `max_slots` is above that of the project.
    """
    before = own_limits(connection, project, user.id)
    after = _changed(before, change)
    if after == before:
        return
    _check(change, project_row(connection, project).max_slots)
    its = (members.c.project == project) & (members.c.user_id == user.id)
    with regrouping(connection, project):
        connection.execute(update(members).where(its).values(after.model_dump()))
    _record(context, connection, project, user=user.name, before=before, after=after, actor=actor)


def _changed(limits: UserLimits, change: UserLimits) -> UserLimits:
    """Return the limits after a change; fields that the change lacks stay."""
    names = UserLimits.model_fields.keys() & change.model_fields_set
    return limits.model_copy(update={name: getattr(change, name) for name in names})


def _check(change: UserLimits, most: int | None) -> None:
    given = change.max_slots
    if most is not None and given is not None and given > most:
        detail = f"max_slots={given} is above the max_slots of the project; legal: 0 to {most}"
        raise InvalidRequestError.at("/max_slots", detail)


def _record(
    context: Context,
    connection: Connection,
    project: str,
    *,
    user: str | None,
    before: UserLimits,
    after: UserLimits,
    actor: Actor,
) -> None:
    whose = "each user" if user is None else user
    message = f"Limits of {whose} in {project}: {_in_words(after)}, before {_in_words(before)}"
    note_change(
        object=f"projects/{project}/" + ("limits" if user is None else f"members/{user}"),
        project=project,
        before=before.model_dump(),
        after=after.model_dump(),
    )
    data = LimitsChanged(project=project, user=user, before=before, after=after)
    append_event(context, connection, NewEvent(data, actor, Subject(project=project), message))


def _in_words(limits: UserLimits) -> str:
    parts = []
    if limits.max_slots is not None:
        parts.append(f"{limits.max_slots:,} slots")
    if limits.max_running is not None:
        parts.append(f"{limits.max_running:,} running jobs")
    return " and ".join(parts) or "none"
