"""Preemption: attempts save and leave for a waiting job of higher priority (lifecycle, 53)."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from server.attempts.finish import preempt
from server.context import Context
from server.database.tables import jobs
from server.lifecycle import lock_job
from server.placement.demand import Holding
from server.subject import SCHEDULER
from trainyard.protocol.states import JobState
from trainyard.spec.sections.resources import priority_words


def order_to_leave(context: Context, job_id: str, victims: Iterable[Holding]) -> int:
    """Order attempts to save and leave for a job that waits; return their number.

    One whose job has the priority of the waiting one by now stays, and so do all that are left when
    that one waits no longer.

    Args:
        context: the server's surroundings.
        job_id: the job that waits.
        victims: what the attempts hold.
    """
    ordered = 0
    row = select(jobs.c.name, jobs.c.state, jobs.c.priority)
    for victim in victims:
        with context.database.write() as connection:
            lock_job(connection, victim.job_id)
            waits = connection.execute(row.where(jobs.c.id == job_id)).one_or_none()
            if waits is None or waits.state != JobState.QUEUED:
                return ordered
            runs = connection.execute(row.where(jobs.c.id == victim.job_id)).one()
            if runs.priority >= waits.priority:
                continue
            because = f"preempted by {waits.name} of priority {priority_words(waits.priority)}"
            preempt(context, connection, victim.attempt_id, actor=SCHEDULER, because=because)
            ordered += 1
    return ordered
