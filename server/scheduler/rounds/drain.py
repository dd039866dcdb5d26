"""Attempts save and leave: on drained nodes, over their project's quota, or at their bound."""

from __future__ import annotations

import logging

from sqlalchemy import or_, select
from sqlalchemy.exc import OperationalError

from server.cluster.projects.quotas import read_used_up
from server.cluster.projects.usage import ReadUsage, read_usage
from server.core.context import Context
from server.core.database.engine import LeadLostError
from server.core.database.held import HAS_RANKS
from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.lifecycle import lock_job
from server.core.subject import SCHEDULER, Actor
from server.jobs.attempts.finish import preempt
from trainyard.protocol.states import AttemptState, DesiredState

logger = logging.getLogger(__name__)


def run_drain(context: Context) -> int:
    """Order each share on a drained node to save and leave; return the number of shares.

    Each round compares all rows: attempts that were placed during the drain leave as well, and a
    scheduler that takes over continues the drain (docs/lifecycle-placing.md, 42-43).
    """
    share, attempt = attempt_nodes.c, attempts.c
    with context.database.read() as connection:
        rows = connection.execute(
            select(share.attempt_id, attempt.job_id, nodes.c.name, nodes.c.drain, nodes.c.notice)
            .join(attempts, attempt.id == share.attempt_id)
            .join(nodes, nodes.c.name == share.node)
            .where(
                HOLDS_SLOTS,
                HAS_RANKS,
                attempt.state != AttemptState.ENDED,  # a lost share outlives its attempt
                attempt.desired == DesiredState.RUN,
                or_(nodes.c.drain.is_not(None), nodes.c.notice.is_not(None)),
            )
            .order_by(share.attempt_id, share.node_rank)
        ).all()
    leaving = [row for row in rows if row.notice or row.drain.running == "move"]
    for row in leaving:
        if row.notice:
            actor, because = Actor(row.name), f"{row.name} is about to go: {row.notice}"
        else:
            actor, because = Actor(row.drain.by), f"{row.name} was drained by {row.drain.by}"
        with context.database.write() as connection:
            lock_job(connection, row.job_id)
            preempt(context, connection, row.attempt_id, actor=actor, because=because)
    return len(leaving)


def run_slot_hours(context: Context, usage: ReadUsage = read_usage) -> int:
    """Order attempts of projects that have used their slot-hours to save and leave.

    Their jobs wait for the next month or a higher quota (docs/projects.md, 14). Each round compares
    all rows, as for a drain.

    Args:
        context: the server's surroundings.
        usage: reads the slot-hours that projects have used.

    Returns:
        The number of attempts.
    """
    with context.database.read() as connection:
        used_up = read_used_up(connection, context.now(), usage=usage)
        if not used_up:
            return 0
        rows = connection.execute(
            select(attempts.c.id, attempts.c.job_id, jobs.c.project)
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(
                attempts.c.state != AttemptState.ENDED,
                attempts.c.desired == DesiredState.RUN,
                jobs.c.project.in_(used_up),
            )
            .order_by(attempts.c.id)
        ).all()
    for row in rows:
        with context.database.write() as connection:
            lock_job(connection, row.job_id)
            because = used_up[row.project]
            preempt(context, connection, row.id, actor=SCHEDULER, because=because)
    return len(rows)


def run_bounds(context: Context) -> int:
    """Order attempts that have reached their bound to save and leave; return their number.

    An attempt without a claim is left to the limit on claims (docs/lifecycle-placing.md, 7 and 58).
    """
    launched = (AttemptState.STARTING, AttemptState.RUNNING)
    with context.database.read() as connection:
        rows = connection.execute(
            select(attempts.c.id, attempts.c.job_id, attempts.c.created_at, attempts.c.runs_until)
            .where(
                attempts.c.state.in_(launched),
                attempts.c.desired == DesiredState.RUN,
                attempts.c.runs_until <= context.now(),
            )
            .order_by(attempts.c.id)
        ).all()
    errors: list[Exception] = []
    for row in rows:
        seconds = (row.runs_until - row.created_at).total_seconds()
        because = f"its max_runtime_seconds={seconds:g} are over"
        try:
            with context.database.write() as connection:
                lock_job(connection, row.job_id)
                preempt(context, connection, row.id, actor=SCHEDULER, because=because)
        except (LeadLostError, OperationalError):
            raise
        except Exception as error:  # one attempt must not delay the orders to others
            logger.exception("attempt %s could not be ordered to leave", row.id)
            errors.append(error)
    if errors:
        raise errors[0]
    return len(rows)
