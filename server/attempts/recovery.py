"""Queues the search for commits that a lost attempt did not report (docs/lifecycle.md, 25)."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from server.attempts.launch import Launch
from server.context import Context
from server.database.tables import checkpoints
from server.operations.service import queue_operation
from server.subject import RECOVERY
from trainyard.protocol.operations import OperationKind, OperationTask, RecoverTask

NOTHING = -1
"""The step before the first that can be saved."""


def queue_recovery(context: Context, connection: Connection, launch: Launch, *, root: str) -> None:
    """Queue the search where the supervisor of rank 0 reported no exit; the job is locked.

    Commits are reported in order, so unreported ones come after the newest reported one.
    """
    job, attempt = launch.job, launch.attempt
    first = launch.nodes[0]
    if first.claimed_at is None or first.reported_exit or job.storage is None:
        return
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
    reason = f"attempt {attempt.number} was lost on {first.node}"
    queue_operation(
        context, connection, task, job=job, checkpoint_id=None, actor=RECOVERY, reason=reason
    )
