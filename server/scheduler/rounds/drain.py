"""Orders attempts to save and leave on drained nodes, over their quota, or at their bound."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import or_, select

from server.cluster.projects.quotas import read_quotas
from server.cluster.projects.usage import ReadUsage, read_usage
from server.core.context import Context
from server.core.database.held import HAS_RANKS
from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.isolation import Isolation
from server.core.lifecycle import lock_job
from server.core.subject import SCHEDULER, Actor
from server.jobs.attempts.finish import preempt
from trainyard.protocol.states import AttemptState, DesiredState

FAILED_PAUSE = timedelta(seconds=15)
"""Pause after which a failed order is given again."""


def order_isolation(context: Context) -> Isolation:
    """Return an isolation, so that a failed order is repeated later and delays no other order."""
    return Isolation(context.clock.monotonic, pause=FAILED_PAUSE)


def run_drain(context: Context, isolation: Isolation) -> int:
    """Order each share on a drained node to save and leave; return the number of shares.

    Each round compares all rows. So attempts that were placed during the drain leave as well, and a
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
        _order(
            context,
            isolation,
            attempt_id=row.attempt_id,
            job_id=row.job_id,
            actor=actor,
            because=because,
        )
    return len(leaving)


def run_slot_hours(context: Context, isolation: Isolation, usage: ReadUsage = read_usage) -> int:
    """Order attempts to save and leave if their project has used up its slot-hours.

    The jobs then wait for the next month or a higher quota (docs/projects.md, 14). Each round
    compares all rows, as for a drain.

    Args:
        context: the server's context.
        isolation: isolation between orders, for one epoch of the leader.
        usage: function that reads the slot-hours that projects have used.

    Returns:
        The number of attempts that were ordered to leave.
    """
    with context.database.read() as connection:
        quotas = read_quotas(connection, context.now(), usage=usage)
        used_up = {name: quota.used_up for name, quota in quotas.items() if quota.used_up}
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
        because = used_up[row.project]
        _order(
            context,
            isolation,
            attempt_id=row.id,
            job_id=row.job_id,
            actor=SCHEDULER,
            because=because,
        )
    return len(rows)


def run_bounds(context: Context, isolation: Isolation) -> int:
    """Order attempts that have reached their bound to save and leave; return their number.

    The time limit for claims, not the bound, ends an unclaimed attempt (docs/lifecycle-placing.md,
    7 and 58).
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
    for row in rows:
        seconds = (row.runs_until - row.created_at).total_seconds()
        because = f"its max_runtime_seconds={seconds:g} are over"
        _order(
            context,
            isolation,
            attempt_id=row.id,
            job_id=row.job_id,
            actor=SCHEDULER,
            because=because,
        )
    return len(rows)


def _order(
    context: Context,
    isolation: Isolation,
    *,
    attempt_id: str,
    job_id: str,
    actor: Actor,
    because: str,
) -> None:
    """Order one attempt to save and leave; its error delays the orders to no other attempt."""
    if isolation.is_left_out(attempt_id):
        return
    turn = isolation.turn(attempt_id, f"the order to leave of attempt {attempt_id}")
    with turn, context.database.write() as connection:
        lock_job(connection, job_id)
        preempt(context, connection, attempt_id, actor=actor, because=because)
