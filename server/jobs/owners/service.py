"""The transfer of a job to another user of its project."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from server.api.auth.endings import end_commands
from server.api.auth.permissions import Roles, scope_of
from server.api.auth.principals import IS_ACTIVE, hold_token, lock_users
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.rows import Job
from server.core.database.scheduler_tables import reason_of_group
from server.core.database.tables import attempts, jobs
from server.core.errors import InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.lifecycle import lock_own_job
from server.core.people.member_tables import everyones_roles, own_roles, parse_roles
from server.core.people.user_tables import users
from server.core.subject import Actor, Subject
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.members import OwnerChanged
from trainyard.protocol.user_accounts.views import ClusterRole


def transfer(context: Context, job_id: str, name: str, *, actor: Actor) -> None:
    """Give a job to another user, who may then run commands in it; a repeat changes nothing.

    The open commands in the job end, because they are those of the former owner.

    Raises:
        NotFoundError: the actor sees no such job.
        ForbiddenError: the actor lacks `members:write` in the job's project.
        InvalidRequestError: no active user of this name may submit jobs in the project.
        UnauthenticatedError: the actor's access has changed meanwhile.
    """
    with context.database.write() as connection:
        owner_id = _user_id(connection, name)
        lock_users(connection, [owner_id, actor.user_id])
        hold_token(connection, actor, context.now())
        may = Permission.MEMBERS_WRITE
        lock_own_job(connection, job_id, scope=actor.scope, permission=may)
        job = Job.one(connection, Job.select().where(jobs.c.id == job_id))
        if owner_id is None or not _may_submit(
            connection, owner_id, job.project, now=context.now()
        ):
            detail = f"{name!r} is no active user who may submit jobs in project {job.project!r}"
            raise InvalidRequestError.at("/owner", detail)
        if job.owner_id == owner_id:
            return
        before = connection.scalar(select(users.c.name).where(users.c.id == job.owner_id))
        # The token of the submitter has no rights in the job of another user.
        values: dict[str, Any] = {"owner_id": owner_id, "token_id": None}
        if job.demand is not None:  # its group may have the limits of the former owner
            values |= {"demand": None, "reason": reason_of_group}
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
        of_job = select(attempts.c.id).where(attempts.c.job_id == job_id)
        end_commands(connection, shells.c.attempt_id.in_(of_job))
        data = OwnerChanged(before=before, owner=name)
        message = f"{job.name} belongs to {name}, before to {before}"
        append_event(context, connection, NewEvent(data, actor, Subject(job_id), message))


def _user_id(connection: Connection, name: str) -> str | None:
    found: str | None = connection.scalar(select(users.c.id).where(users.c.name == name, IS_ACTIVE))
    return found


def _may_submit(connection: Connection, user_id: str, project: str, *, now: datetime) -> bool:
    query = select(users.c.role, own_roles, everyones_roles).where(users.c.id == user_id, IS_ACTIVE)
    row = connection.execute(query, {"now": now}).one_or_none()
    if row is None:
        return False
    in_projects = parse_roles(row.own_roles, row.everyones_roles)
    return scope_of(Roles(ClusterRole(row.role), in_projects)).may(Permission.JOBS_WRITE, project)
