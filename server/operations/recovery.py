"""Unreported commits of a lost attempt: the search for them, and their entry in the catalog."""

from __future__ import annotations

from sqlalchemy import Connection, func, select, update

from server.attempts.launch import Launch, effective_spec
from server.checkpoints.catalog import record_commit
from server.checkpoints.manifests import check_manifest
from server.context import Context
from server.database.rows import Operation
from server.database.tables import attempts, checkpoints
from server.operations.service import apply_retention
from server.operations.store import queue_operation
from server.subject import RECOVERY
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.operations import OperationKind, OperationTask, RecoverTask

NOTHING = -1
"""The step before the first that can be saved."""


def queue_recovery(context: Context, connection: Connection, launch: Launch) -> None:
    """Search for commits of an attempt whose rank 0 reported no exit; the job is locked.

    Commits are reported in order, so what is unknown lies after the newest that is known.
    """
    job, attempt = launch.job, launch.attempt
    first = launch.nodes[0]
    if first.claimed_at is None or first.exit is not None or job.storage is None:
        return
    known = select(func.max(checkpoints.c.step)).where(checkpoints.c.attempt_id == attempt.id)
    step = connection.scalar(known)
    task = OperationTask(
        kind=OperationKind.RECOVER,
        job_id=job.id,
        root=launch.spec.checkpoint.root,
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


def enter_recovered(
    context: Context, connection: Connection, operation: Operation, texts: tuple[str, ...]
) -> None:
    """Enter the commits that a search has found; the job is locked, where it is still there."""
    task = operation.task.recover
    assert task is not None, "a search has its task"
    of_attempt = (attempts.c.job_id == operation.job_id, attempts.c.number == task.attempt)
    attempt_id = connection.scalar(select(attempts.c.id).where(*of_attempt))
    if attempt_id is None:
        return  # the job was deleted meanwhile
    found = [
        m for text in texts if (m := _manifest(text, operation.job_id, task.attempt)) is not None
    ]
    for manifest in sorted(found, key=lambda manifest: manifest.train_state.step):
        record_commit(
            context,
            connection,
            attempt_id,
            manifest,
            root=operation.task.root,
            actor=RECOVERY,
            found_by=operation.node,
        )
    if found:
        last = max(manifest.train_state.step for manifest in found)
        connection.execute(
            update(attempts)
            .where(attempts.c.id == attempt_id, attempts.c.last_step < last)
            .values(last_step=last)
        )
        section = effective_spec(connection, attempt_id).checkpoint
        apply_retention(context, connection, operation.job_id, section)


def _manifest(text: str, job_id: str, attempt: int) -> Manifest | None:
    """Return a manifest of the attempt; None where it is none that the catalog can hold."""
    try:
        manifest = Manifest.model_validate_json(text)
        check_manifest(manifest, job_id=job_id, attempt=attempt)
    except ValueError:
        return None
    return manifest
