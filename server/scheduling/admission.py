"""Whether a queued job may start, looked at once more when it has got its slots."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from server.context import Context
from server.database.rows import Job
from server.jobs.checks import not_allowed
from server.lifecycle import job_to, move
from server.scheduling.queue import put_off
from server.secrets import KeyFileError
from server.subject import SCHEDULER, Subject
from trainyard.base.problems import Problem
from trainyard.protocol.rest.event_data import JobEnded
from trainyard.protocol.states import JobState
from trainyard.run.failures import REMEDIES, FailureReason


def may_start(context: Context, connection: Connection, job: Job) -> bool:
    """Return whether a job may start; the job is locked.

    One that was stored when the server allowed more ends. One whose environment cannot be decrypted
    waits outside the queue for a while, so that it keeps no slots from others.
    """
    try:
        spec = context.secrets.restore(job.spec, job.env)
    except KeyFileError as error:
        put_off(context, connection, {job.id: error.detail})
        return False
    problems = not_allowed(context, spec)
    if problems:
        _end(context, connection, job, problems)
    return not problems


def _end(context: Context, connection: Connection, job: Job, problems: Sequence[Problem]) -> None:
    reason = FailureReason.NOT_ALLOWED
    what = "; ".join(f"{p.pointer[1:].replace('/', '.')}: {p.detail}" for p in problems)
    why = f"{reason}: {what}. {REMEDIES[reason].text}"
    move(
        context,
        connection,
        job_to(
            job.id,
            JobState.FAILED,
            ended_at=context.now(),
            pending=None,
            not_before=None,
            reason=why,
        ),
        event=JobEnded(state=JobState.FAILED, reason=why),
        message=f"{job.name} {JobState.FAILED}: {why}",
        actor=SCHEDULER,
        subject=Subject(job.id),
    )
