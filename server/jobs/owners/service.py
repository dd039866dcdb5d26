"""The transfer of a job to another user of its project."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from server.api.auth.endings import end_commands
from server.api.auth.principals import IS_ACTIVE, hold_token, lock_users, scopes_of_users
from server.cluster.named_secrets.secret_uses import SecretUse
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.rows import Job
from server.core.database.scheduler_tables import reason_of_group
from server.core.database.tables import attempts, jobs
from server.core.errors import ConflictError, InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.lifecycle import lock_own_job
from server.core.people.unix_accounts import check_may_act_for
from server.core.people.user_tables import users
from server.core.subject import Actor, Subject
from server.core.visibility.scope import NO_SCOPE
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.members import OwnerChanged


def transfer(context: Context, job_id: str, name: str, *, actor: Actor) -> None:
    """Give a job to another user, who may then run commands in it; a repeat changes nothing.

    The open commands in the job end, because they are those of the former owner.

    Raises:
        NotFoundError: the actor sees no such job.
        ForbiddenError: the actor lacks `members:write` in the job's project, or may not use the
            Unix account of the new owner.
        InvalidRequestError: no active user of this name may submit jobs in the project.
        ConflictError: the job refers to own secrets of its owner.
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
        _check_secrets(job)
        check_may_act_for(connection, owner_id, actor=actor)
        before = connection.scalar(select(users.c.name).where(users.c.id == job.owner_id))
        # The token of the submitter has no rights in the job of another user.
        # The demand depends on the limits and the Unix account of the owner.
        values: dict[str, Any] = {"owner_id": owner_id, "token_id": None}
        if job.demand is not None:
            values |= {"demand": None, "reason": reason_of_group}
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
        of_job = select(attempts.c.id).where(attempts.c.job_id == job_id)
        end_commands(connection, shells.c.attempt_id.in_(of_job))
        data = OwnerChanged(before=before, owner=name)
        message = f"{job.name} belongs to {name}, before to {before}"
        note_change(project=job.project, before={"owner": before}, after={"owner": name})
        append_event(context, connection, NewEvent(data, actor, Subject(job_id), message))


def _check_secrets(job: Job) -> None:
    """Refuse to transfer a job that gets own secrets of its owner.

    With another owner, the references would name secrets of a person who never submitted the job,
    and whoever wrote the job's code would get their values.
    """
    of_owner = SecretUse.of_job(job).of_owner
    if of_owner:
        raise ConflictError(
            f"{job.name} refers to own secrets of its owner ({', '.join(of_owner)}), which do not "
            "follow a transfer; the other user can fork the job"
        )


def _user_id(connection: Connection, name: str) -> str | None:
    found: str | None = connection.scalar(select(users.c.id).where(users.c.name == name, IS_ACTIVE))
    return found


def _may_submit(connection: Connection, user_id: str, project: str, *, now: datetime) -> bool:
    scope = scopes_of_users(connection, [user_id], now).get(user_id, NO_SCOPE)
    return scope.may(Permission.JOBS_WRITE, project)
