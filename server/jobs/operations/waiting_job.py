"""Fails a job if the build of its environment fails (docs/lifecycle.md, 56)."""

from __future__ import annotations

from sqlalchemy import Connection, select

from server.core.context import Context
from server.core.database.rows import OperationHead
from server.core.database.tables import jobs
from server.core.events.store import NewEvent
from server.core.lifecycle import job_to, move
from server.core.subject import SERVER, Subject
from trainyard.protocol.rest.event_data import JobEnded
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason

REMEDY = "Mend what the message names, then resume; a lock in a pack needs a new job."


def end_waiting_job(
    context: Context, connection: Connection, *, build: OperationHead, message: str
) -> None:
    """Fail the job of a build unless the job has left the queue; the job is locked.

    Args:
        context: the server's context.
        connection: a transaction that holds the job's lock.
        build: the operation that failed to build the environment.
        message: why the build failed.
    """
    state = connection.scalar(select(jobs.c.state).where(jobs.c.id == build.job_id))
    if state != JobState.QUEUED:
        return
    reason = f"{FailureReason.LAUNCH_ERROR}: {message}. {REMEDY}"
    event = NewEvent(
        JobEnded(state=JobState.FAILED, reason=reason),
        SERVER,
        Subject(build.job_id),
        f"{build.job_name} {JobState.FAILED}: {reason}",
    )
    ended = job_to(
        build.job_id,
        JobState.FAILED,
        ended_at=context.now(),
        pending=None,
        not_before=None,
        reason=reason,
    )
    move(context, connection, event, ended)
