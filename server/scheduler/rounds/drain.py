"""Orders attempts to save and leave: their node drains, or their quota or time is used up."""

from __future__ import annotations

from collections.abc import Sequence
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
_Order = tuple[str, str, Actor, str]
"""Id of an attempt, id of its job, the actor, and the reason."""


def order_isolation(context: Context) -> Isolation:
    """Return an isolation in which a failed order is repeated later and delays no other order."""
    return Isolation(context.clock.monotonic, pause=FAILED_PAUSE)


def run_drain(context: Context, isolation: Isolation) -> int:
    """Order attempts on drained or soon ending nodes to save and leave; return the share count.

    A drain with `finish` gives no order. Each round reads all rows. Therefore attempts that were
    placed during the drain leave as well, and the drain continues after a takeover by another
    scheduler (docs/lifecycle-placing.md, 42-43).
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
    orders: list[_Order] = []
    for attempt_id, job_id, node, drain, notice in rows:
        if notice:
            orders.append((attempt_id, job_id, Actor(node), f"{node} is about to go: {notice}"))
        elif drain.running == "move":
            because = f"{node} was drained by {drain.by}"
            orders.append((attempt_id, job_id, Actor(drain.by), because))
    return _give(context, isolation, orders)


def run_slot_hours(context: Context, isolation: Isolation, usage: ReadUsage = read_usage) -> int:
    """Order attempts to save and leave if their project used up its slot-hours; return the count.

    The jobs then wait for the next month or a higher quota (docs/projects.md, 14). Each round reads
    all rows.
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
    orders = [(row.id, row.job_id, SCHEDULER, used_up[row.project]) for row in rows]
    return _give(context, isolation, orders)


def run_bounds(context: Context, isolation: Isolation) -> int:
    """Order attempts to save and leave when their maximum run time is over; return their number.

    An unclaimed attempt is not ordered, because the time limit for claims ends it
    (docs/lifecycle-placing.md, 7 and 58).
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
    orders: list[_Order] = []
    for row in rows:
        seconds = (row.runs_until - row.created_at).total_seconds()
        because = f"its max_runtime_seconds={seconds:g} are over"
        orders.append((row.id, row.job_id, SCHEDULER, because))
    return _give(context, isolation, orders)


def _give(context: Context, isolation: Isolation, orders: Sequence[_Order]) -> int:
    for attempt_id, job_id, actor, because in orders:
        if isolation.is_left_out(attempt_id):
            continue
        turn = isolation.turn(attempt_id, f"the order to leave of attempt {attempt_id}")
        with turn, context.database.write() as connection:
            lock_job(connection, job_id)
            preempt(context, connection, attempt_id, actor=actor, because=because)
    return len(orders)
