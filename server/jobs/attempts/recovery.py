"""The search for unreported checkpoints of an attempt (docs/lifecycle-failures.md, 25)."""

from __future__ import annotations

from sqlalchemy import Connection, select

from server.core.context import Context
from server.core.database.tables import attempt_nodes
from server.core.subject import RECOVERY
from server.jobs.attempts.launch import Launch, newest_saved_step
from server.jobs.attempts.lineage import BEFORE_ALL
from server.jobs.operations.service import queue_operation
from trainyard.protocol.operations import OperationKind, OperationTask, RecoverTask


def queue_recovery(context: Context, connection: Connection, launch: Launch, *, root: str) -> None:
    """Queue a search for checkpoints if the first node is lost or rank 0 ended during a save.

    The caller holds the job's lock. The search starts after the newest reported commit, because
    commits are reported in order.
    """
    job, attempt = launch.job, launch.attempt
    first = launch.nodes[0]
    if first.claimed_at is None or job.storage is None:
        return
    reason = f"attempt {attempt.number} was lost on {first.node}"
    if first.reported_exit:
        share = attempt_nodes.c
        of_first = (share.attempt_id == attempt.id) & (share.node == first.node)
        record = connection.scalar(select(share.exit).where(of_first))
        if record is None or not record.unreported_commit:
            return
        reason = f"attempt {attempt.number} ended during a save"
    step = newest_saved_step(connection, attempt.id)
    after_step = BEFORE_ALL if step is None else step
    wanted = RecoverTask(attempt=attempt.number, fence=attempt.number + 1, after_step=after_step)
    task = OperationTask(
        kind=OperationKind.RECOVER, job_id=job.id, root=root, paths=(), recover=wanted
    )
    queue_operation(context, connection, task, job=job, actor=RECOVERY, reason=reason)
