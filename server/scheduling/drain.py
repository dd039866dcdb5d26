"""Draining: attempts save and leave nodes that are drained or announced a shutdown (42-43)."""

from __future__ import annotations

from sqlalchemy import or_, select

from server.attempts.finish import preempt
from server.context import Context
from server.database.tables import attempt_nodes, attempts, nodes
from server.lifecycle import lock_job
from server.subject import Actor
from trainyard.protocol.states import AttemptNodeState, DesiredState


def run_drain(context: Context) -> int:
    """Order each share on a node that is drained to save and leave; return the number of shares.

    Each round compares all rows, so attempts that were placed during the drain leave as well, and a
    scheduler that takes over continues (docs/lifecycle.md, 42-43).
    """
    share, attempt = attempt_nodes.c, attempts.c
    with context.database.read() as connection:
        rows = connection.execute(
            select(share.attempt_id, attempt.job_id, nodes.c.name, nodes.c.drain, nodes.c.notice)
            .join(attempts, attempt.id == share.attempt_id)
            .join(nodes, nodes.c.name == share.node)
            .where(
                share.state != AttemptNodeState.ENDED,
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
