"""Preemption: orders attempts to save and leave for a job of higher priority.

See docs/lifecycle-placing.md, 53.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from server.cluster.placement.demand import Holding
from server.core.context import Context
from server.core.database.tables import jobs
from server.core.lifecycle import lock_job
from server.core.subject import SCHEDULER
from server.core.visibility.job_labels import label
from server.jobs.attempts.finish import preempt
from trainyard.protocol.states import JobState
from trainyard.spec.sections.resources import priority_words


def order_to_leave(context: Context, job_id: str, victims: Iterable[Holding]) -> int:
    """Order attempts to save and leave for a waiting job; return their number.

    Either all victims leave or none, because the job needs the slots of all of them. None leaves if
    the waiting job has left the queue or its group, because the job may then need other slots. None
    leaves if the priority of a victim's job has become too high. The priority must be below the
    priority of the waiting job. If the victim overtook the waiting job on an estimate alone, the
    priorities may be equal, but the priority of the victim's job must not have risen.

    Raises:
        NotFoundError: the job of a victim was deleted.
    """
    leaving = sorted(victims, key=lambda victim: victim.job_id)
    columns = (jobs.c.project, jobs.c.name, jobs.c.priority, jobs.c.queued_at)
    grouped = (jobs.c.state == JobState.QUEUED, jobs.c.demand.is_not(None))
    with context.database.write() as connection:
        for victim in leaving:  # lock all jobs before the first event
            lock_job(connection, victim.job_id)
        waiting = select(*columns).where(jobs.c.id == job_id, *grouped)
        waits = connection.execute(waiting).one_or_none()
        if waits is None:
            return 0
        victim_ids = [victim.job_id for victim in leaving]
        query = select(jobs.c.id, jobs.c.priority).where(jobs.c.id.in_(victim_ids))
        priorities = {row.id: row.priority for row in connection.execute(query)}
        overtook = {each.job_id for each in leaving if each.overtook(waits.queued_at)}
        for victim in leaving:
            # The round has compared all other values that determine the order of the queue.
            most = waits.priority - 1
            if victim.job_id in overtook:
                most = min(victim.priority, waits.priority)
            if priorities.get(victim.job_id, most) > most:
                return 0
        name = label(waits.project, waits.name)
        for_priority = f"preempted by {name} of priority {priority_words(waits.priority)}"
        for_head = f"gives way to {name}, which was ahead of it"
        for victim in leaving:
            because = for_head if victim.job_id in overtook else for_priority
            preempt(context, connection, victim.attempt_id, actor=SCHEDULER, because=because)
    return len(leaving)
