"""Commands on jobs: stop, cancel, delete, and requests to a running trainer."""

from __future__ import annotations

from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from server.api.auth.endings import write_as
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.rows import Job
from server.core.database.scheduler_tables import reason_of_group
from server.core.database.tables import attempts, events, idempotency_keys, jobs, requests
from server.core.errors import ConflictError
from server.core.events.notices import forget
from server.core.events.store import NewEvent, append_event
from server.core.lifecycle import job_to, lock_own_job, move
from server.core.subject import SCHEDULER, Actor, Subject
from server.core.visibility.scope import Scope
from server.jobs.attempts.finish import order
from server.jobs.attempts.launch import (
    newest_attempt_id,
    newest_launch,
    refuse_while_held,
    release_kept,
    runs_program,
)
from server.jobs.attempts.parent import parent_checkpoint
from server.jobs.checkpoints.deletion import remove_with_job
from server.jobs.checkpoints.guards import refuse_while_needed
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.event_data import JobDeleted, JobEnded, PriorityChanged
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.states import TERMINAL_JOB_STATES, DesiredState, JobState
from trainyard.run.records import Request
from trainyard.spec.sections.resources import priority_words

MAX_OPEN_REQUESTS = 16
"""Maximum number of unanswered requests to an attempt, because each reply to a report repeats all
of them.
"""
DESIRED_END = {DesiredState.STOP: JobState.STOPPED, DesiredState.CANCEL: JobState.CANCELLED}


def stop(context: Context, job_id: str, *, actor: Actor, reason: str) -> None:
    """Order a job to save a checkpoint and end.

    A queued job is stopped immediately. A repeat changes nothing.

    Raises:
        NotFoundError: the caller sees no such job.
        ForbiddenError: the caller lacks the permission in the job's project.
        ConflictError: the job has ended, or is being cancelled.
    """
    with write_as(context, actor) as connection:
        job = _locked(connection, job_id, scope=actor.scope)
        if job.state == JobState.STOPPING and job.desired == DesiredState.CANCEL:
            raise ConflictError(f"{job.name} is being cancelled")
        _end(context, connection, job=job, desired=DesiredState.STOP, actor=actor, reason=reason)


def cancel(context: Context, job_id: str, *, actor: Actor, reason: str) -> str:
    """Order a job to end without a save; return the loss, such as `340 steps since step-1200`.

    Raises:
        NotFoundError: the caller sees no such job.
        ForbiddenError: the caller lacks the permission in the job's project.
        ConflictError: the job has ended.
    """
    with write_as(context, actor) as connection:
        job, desired = _locked(connection, job_id, scope=actor.scope), DesiredState.CANCEL
        lost = _lost(connection, job)
        _end(context, connection, job=job, desired=desired, actor=actor, reason=reason, lost=lost)
        return lost


def set_priority(context: Context, job_id: str, priority: int, *, actor: Actor) -> None:
    """Change the priority of a queued or running job; a repeat changes nothing.

    Raises:
        NotFoundError: the caller sees no such job.
        ForbiddenError: the caller lacks the permission in the job's project.
        ConflictError: the job has ended.
    """
    with write_as(context, actor) as connection:
        job = _locked(connection, job_id, scope=actor.scope)
        if job.imported_from is not None:
            raise ConflictError(f"{job.name} was imported from {job.imported_from}: it never waits")
        if job.state in TERMINAL_JOB_STATES:
            raise ConflictError(f"{job.name} is {job.state}; resume it with another priority")
        pending = job.pending
        if pending is not None:
            overrides = pending.overrides.with_priority(job.spec, priority)
            pending = pending.model_copy(update={"overrides": overrides})
        if (priority, pending) == (job.priority, job.pending):
            return
        values: dict[str, Any] = {"priority": priority, "pending": pending}
        if job.demand is not None:  # leaves its group, so the next round reads the new order
            values |= {"demand": None, "reason": reason_of_group}
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**values))
        note_change(before={"priority": job.priority}, after={"priority": priority})
        data = PriorityChanged(before=job.priority, priority=priority)
        new, old = priority_words(priority), priority_words(job.priority)
        message = f"{job.name} has priority {new}, before {old}"
        append_event(context, connection, NewEvent(data, actor, Subject(job_id), message))


def delete(
    context: Context, job_id: str, *, actor: Actor, checkpoints: Literal["keep", "delete"]
) -> list[str]:
    """Remove an ended job with all of its rows.

    If requested, operations also delete the job's checkpoints on storage; return the ids of these
    operations.

    Raises:
        NotFoundError: the caller sees no such job.
        ForbiddenError: the caller lacks the permission in the job's project.
        ConflictError: the job has not ended, a lost node may run its ranks, or a guard protects one
            of its checkpoints.
    """
    operations: list[str] = []
    with write_as(context, actor) as connection:
        may = Permission.JOBS_DELETE
        job = _locked(connection, job_id, scope=actor.scope, permission=may)
        if job.state not in TERMINAL_JOB_STATES:
            raise ConflictError(f"{job.name} is {job.state}; stop or cancel it first")
        refuse_while_held(connection, job)
        refuse_while_needed(connection, job_id, scope=actor.scope)
        if checkpoints == "delete":
            operations = remove_with_job(context, connection, job, actor=actor)
        connection.execute(sa.delete(jobs).where(jobs.c.id == job_id))
        forget(connection, job_id)
        for table in (events, idempotency_keys):
            connection.execute(sa.delete(table).where(table.c.job_id == job_id))
        gone = Subject(job_id, project=job.project)
        note_change(before={"name": job.name, "state": job.state})
        event = NewEvent(JobDeleted(), actor, gone, f"{job.name} was deleted")
        append_event(context, connection, event)
    return operations


def add_request(context: Context, job_id: str, request: Request, *, actor: Actor) -> str:
    """Store a request to a running trainer or program, and return its id.

    Raises:
        NotFoundError: the caller sees no such job.
        ForbiddenError: the caller lacks the permission in the job's project.
        ConflictError: the job does not run, its program does not answer this kind of request, or
            too many of its requests are unanswered.
    """
    request_id = context.new_id()
    row = {"id": request_id, "request": request, "created_at": context.now()}
    with write_as(context, actor) as connection:
        job = _locked(connection, job_id, scope=actor.scope)
        if job.state != JobState.RUNNING:
            raise ConflictError(f"{job.name} is {job.state}, not running")
        if job.spec.program is not None and request.kind not in job.progress.answers:
            call = "run.should_save(step)" if request.kind == "save" else "run.request()"
            raise ConflictError(
                f"{job.name} runs a program (program.command), which answers no {request.kind}: it "
                f"has not called {call} of trainyard.init()"
            )
        attempt_id = newest_attempt_id(connection, job_id)
        unanswered = (requests.c.attempt_id == attempt_id) & requests.c.answer.is_(None)
        waiting = connection.scalar(sa.select(sa.func.count()).where(unanswered)) or 0
        if waiting >= MAX_OPEN_REQUESTS:
            raise ConflictError(f"{waiting} requests wait for an answer already")
        connection.execute(sa.insert(requests).values(**row, attempt_id=attempt_id))
    return request_id


def end_running(
    context: Context,
    connection: Connection,
    *,
    job: Job,
    desired: DesiredState,
    actor: Actor,
    reason: str,
    lost: str | None = None,
    pending: PendingLaunch | None = None,
) -> None:
    """Order the current attempt to end; `pending` is the launch that follows a stop."""
    values: dict[str, Any] = {"desired": desired.value, "pending": pending}
    if pending is not None and actor != SCHEDULER:
        values["retries_used"] = 0  # a start by a person restores the retry budget
    moves = []
    if job.state == JobState.STOPPING:
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(**values))
    else:
        moves = [job_to(job.id, JobState.STOPPING, **values)]
    order(
        context,
        connection,
        launch=newest_launch(connection, job.id),
        desired=desired,
        actor=actor,
        reason=reason,
        moves=moves,
        lost=lost,
    )


def _locked(
    connection: Connection,
    job_id: str,
    *,
    scope: Scope,
    permission: Permission = Permission.JOBS_WRITE,
) -> Job:
    lock_own_job(connection, job_id, scope=scope, permission=permission)
    return Job.one(connection, Job.select().where(jobs.c.id == job_id))


def _end(
    context: Context,
    connection: Connection,
    *,
    job: Job,
    desired: DesiredState,
    actor: Actor,
    reason: str,
    lost: str | None = None,
) -> None:
    if job.state in TERMINAL_JOB_STATES:
        raise ConflictError(f"{job.name} has already ended: {job.state}")
    if job.state == JobState.QUEUED:
        state = DESIRED_END[desired]
        message = f"{job.name} {state} while it waited" + (f": {reason}" if reason else "")
        event = NewEvent(JobEnded(state=state, reason=reason), actor, Subject(job.id), message)
        values: dict[str, Any] = {"pending": None, "not_before": None, "reason": reason or None}
        release_kept(context, connection, job)
        move(context, connection, event, job_to(job.id, state, ended_at=context.now(), **values))
        return
    again = job.state == JobState.STOPPING and job.desired == desired and job.stored_pending is None
    if not again:
        end_running(
            context, connection, job=job, desired=desired, actor=actor, reason=reason, lost=lost
        )


def _lost(connection: Connection, job: Job) -> str:
    newest = (attempts.c.job_id == job.id) & (attempts.c.number == job.attempt)
    steps_of = sa.select(attempts.c.last_step, attempts.c.start_step).where(newest)
    attempt = connection.execute(steps_of).one_or_none()
    if attempt is None:
        return "nothing: it has not started"
    parent = parent_checkpoint(connection, job.id)
    saved = parent.step if parent.own else attempt.start_step
    if not parent.own and runs_program(job):
        return f"all that attempt {job.attempt} did, except what the program saved by itself"
    steps = max(attempt.last_step, attempt.start_step) - saved
    since = f"step-{saved}" if parent.own else "the start; nothing was saved"
    if steps <= 0 and parent.own and runs_program(job):  # a program may not report steps
        return f"what the program did since {since}"
    if steps <= 0:
        return f"nothing: all is saved in step-{saved}" if parent.own else "nothing"
    return f"{steps} step{'' if steps == 1 else 's'} since {since}"
