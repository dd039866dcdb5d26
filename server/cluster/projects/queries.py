"""Views of projects, with held slots, used slot-hours and waiting jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from sqlalchemy import Connection, Table, func, or_, select

from server.cluster.projects.usage import read_usage
from server.core.context import Context
from server.core.database.held import HELD_SLOTS, HOLDS
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import projects
from server.core.database.tables import jobs
from server.core.people.member_tables import HAS_OWN_LIMITS, members
from server.core.people.visible_projects import check_visible, no_project
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRole, ProjectSettings, ProjectView
from trainyard.protocol.states import JobState

HAS_QUOTA = or_(projects.c.max_slots.is_not(None), projects.c.slot_hours_per_month.is_not(None))
"""SQL condition that a project has a quota."""
LIMITS_USERS = or_(
    projects.c.member_max_slots.is_not(None),
    projects.c.member_max_running.is_not(None),
    projects.c.name.in_(select(members.c.project).where(HAS_OWN_LIMITS)),
)
"""SQL condition that a project limits its users, or at least one of them."""
_USE = (
    select(jobs.c.project, jobs.c.owner_id, func.sum(HELD_SLOTS), func.count())
    .where(HOLDS)
    .group_by(jobs.c.project, jobs.c.owner_id)
)
_HELD_SLOTS = select(jobs.c.project, func.sum(HELD_SLOTS)).where(HOLDS).group_by(jobs.c.project)


@dataclass(frozen=True, slots=True)
class Project(TypedRow):
    """A project with all its columns."""

    table: ClassVar[Table] = projects
    name: str
    description: str
    weight: float
    max_slots: int | None
    slot_hours_per_month: float | None
    created_by: str
    created_at: datetime
    everyone: ProjectRole | None
    member_max_slots: int | None
    member_max_running: int | None

    @property
    def settings(self) -> ProjectSettings:
        """Settings of the project that people can change."""
        return ProjectSettings(**self.values_for(ProjectSettings))


def project_row(connection: Connection, name: str) -> Project:
    """Return a project.

    Raises:
        NotFoundError: no project has this name.
    """
    row = Project.one_or_none(connection, Project.select().where(projects.c.name == name))
    if row is None:
        raise no_project(name)
    return row


def lock_project(connection: Connection, name: str, *, against_new_jobs: bool = False) -> None:
    """Lock a project until the transaction ends; users are locked before (see `write_as`).

    New jobs do not wait for the lock, because a fork may hold a job that the caller changes. Only
    the deletion of a project locks it `against_new_jobs`.
    """
    query = select(projects.c.name).where(projects.c.name == name)
    connection.execute(query.with_for_update(key_share=not against_new_jobs))


def keep_grouping(connection: Connection, names: Collection[str]) -> Mapping[str, bool]:
    """Lock the given projects until the transaction ends; return those with separate groups.

    The value is whether the project has groups for each user.
    """
    locked = select(projects.c.name).where(projects.c.name.in_(names))
    connection.execute(locked.order_by(projects.c.name).with_for_update(read=True)).all()
    return read_grouping(connection, names)


def read_grouping(connection: Connection, names: Collection[str]) -> Mapping[str, bool]:
    """Return the given projects with separate groups, which have a quota or limit their users.

    The value is whether the project has groups for each user. The caller has locked the projects.
    """
    # A statement of its own: one that waited for the lock would not see new limits of members.
    rows = connection.execute(
        select(projects.c.name, LIMITS_USERS).where(
            projects.c.name.in_(names), or_(HAS_QUOTA, LIMITS_USERS)
        )
    )
    return {name: bool(limits_users) for name, limits_users in rows}


def held_slots(connection: Connection) -> Mapping[str, int]:
    """Return the number of held slots by project; projects without held slots are omitted."""
    return {project: int(slots) for project, slots in connection.execute(_HELD_SLOTS).all()}


def use_of_users(connection: Connection) -> Mapping[tuple[str, str], tuple[int, int]]:
    """Return the numbers of held slots and of jobs that hold them, by project and owner.

    Owners without held slots are omitted. The query reads all jobs that hold slots: a condition on
    the project would make the database read the project's ended jobs.
    """
    rows = connection.execute(_USE)
    return {(project, owner): (int(slots), count) for project, owner, slots, count in rows}


def list_projects(
    context: Context, *, scope: Scope, after: str | None = None, limit: int = 100
) -> list[ProjectView]:
    """Return at most `limit` visible projects, sorted by name, that follow the name `after`."""
    seen = scope.filter(projects.c.name, Permission.PROJECTS_READ)
    query = Project.select().where(seen).order_by(projects.c.name).limit(limit)
    if after is not None:
        query = query.where(projects.c.name > after)
    with context.database.read() as connection:
        return views(context, connection, Project.all(connection, query), scope=scope)


def read_project(context: Context, name: str, *, scope: Scope) -> ProjectView:
    """Return the view of one project.

    Raises:
        NotFoundError: no project has this name, or the caller does not see it.
    """
    with context.database.read() as connection:
        check_visible(connection, name, scope=scope, permission=Permission.PROJECTS_READ)
        return views(context, connection, [project_row(connection, name)], scope=scope)[0]


def views(
    context: Context, connection: Connection, rows: Sequence[Project], *, scope: Scope
) -> list[ProjectView]:
    """Return the views of projects, each with the caller's role."""
    held = held_slots(connection)
    queued = select(jobs.c.project, func.count()).where(jobs.c.state == JobState.QUEUED)
    waiting: dict[str, int] = dict(connection.execute(queued.group_by(jobs.c.project)).all())
    used = read_usage(connection, context.now(), [row.name for row in rows])
    weights = connection.execute(select(projects.c.name, projects.c.weight))
    active = {name: weight for name, weight in weights if name in held or name in waiting}
    all_held, all_weights = sum(held.values()), sum(active.values())
    return [
        ProjectView(
            **row.values_for(ProjectView),
            role=scope.role_in(row.name),
            held_slots=held.get(row.name, 0),
            waiting_jobs=waiting.get(row.name, 0),
            share=held.get(row.name, 0) / all_held if all_held else 0.0,
            fair_share=active.get(row.name, 0.0) / all_weights if all_weights else 0.0,
            slot_hours_used=used.get(row.name, 0.0),
        )
        for row in rows
    ]
