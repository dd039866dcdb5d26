"""The search for unreported checkpoints of an attempt (docs/lifecycle-failures.md, 25)."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from server.core.context import Context
from server.core.database.rows import AttemptNode
from server.core.database.tables import attempt_nodes, checkpoints
from server.core.subject import RECOVERY
from server.jobs.attempts.launch import Launch
from server.jobs.operations.service import queue_operation
from trainyard.protocol.operations import OperationKind, OperationTask, RecoverTask

NOTHING = -1
"""The step before the first step that can be saved."""


def queue_recovery(context: Context, connection: Connection, launch: Launch, *, root: str) -> None:
    """Queue the search if the first node is lost or its rank 0 ended during a save.

    The caller holds the job's lock. Commits are reported in order, so only commits after the newest
    reported commit can be missing.
    """
    job, attempt = launch.job, launch.attempt
    first = launch.nodes[0]
    if first.claimed_at is None or job.storage is None:
        return
    reason = f"attempt {attempt.number} was lost on {first.node}"
    if first.reported_exit:
        if not _may_lack_a_commit(connection, first):
            return
        reason = f"attempt {attempt.number} ended during a save"
    known = select(func.max(checkpoints.c.step)).where(checkpoints.c.attempt_id == attempt.id)
    step = connection.scalar(known)
    task = OperationTask(
        kind=OperationKind.RECOVER,
        job_id=job.id,
        root=root,
        paths=(),
        recover=RecoverTask(
            attempt=attempt.number,
            fence=attempt.number + 1,
            after_step=NOTHING if step is None else step,
        ),
    )
    queue_operation(
        context, connection, task, job=job, checkpoint_id=None, actor=RECOVERY, reason=reason
    )


def _may_lack_a_commit(connection: Connection, share: AttemptNode) -> bool:
    of_share = (attempt_nodes.c.attempt_id == share.attempt_id, attempt_nodes.c.node == share.node)
    record = connection.scalar(select(attempt_nodes.c.exit).where(*of_share))
    return record is not None and record.unreported_commit
