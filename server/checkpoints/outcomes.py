"""What ended operations change in the catalog: deletions, verifications, recovered commits."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, update

from server.attempts.launch import effective_spec
from server.checkpoints.catalog import record_commit
from server.checkpoints.manifests import check_manifest
from server.checkpoints.service import apply_retention
from server.context import Context
from server.database.rows import Operation
from server.database.tables import attempts, checkpoints
from server.subject import RECOVERY
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.operations import OperationKind, OperationOutcome, Verification


def apply_outcome(
    context: Context, connection: Connection, operation: Operation, outcome: OperationOutcome
) -> tuple[OperationOutcome, bool | None]:
    """Enter into the catalog what an operation did; its job is locked, where it is still there.

    Returns:
        The outcome to keep, without what the catalog holds now, and of a verification its result.
    """
    if outcome.outcome != "succeeded":
        return outcome, None
    if operation.kind == OperationKind.RECOVER:
        _enter_recovered(context, connection, operation, outcome.commits)
        return outcome.model_copy(update={"commits": ()}), None
    if operation.checkpoint_id is None:
        return outcome, None
    if operation.kind == OperationKind.DELETE:
        _remove_row(connection, operation.checkpoint_id)
        return outcome, None
    if outcome.verification is None:
        return outcome, None
    _note_verification(context, connection, operation.checkpoint_id, outcome.verification)
    return outcome, outcome.verification.ok


def _enter_recovered(
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


def _note_verification(
    context: Context, connection: Connection, checkpoint_id: str, found: Verification
) -> None:
    """Keep what was found; that all was loaded once stays known after a scrub without a fault."""
    before = connection.scalar(
        select(checkpoints.c.verification).where(checkpoints.c.id == checkpoint_id)
    )
    if found.ok and found.loaded_at is None and before is not None and before.ok:
        loads = ("loaded_at", "loaded_on", "tensors")
        found = found.model_copy(update={name: getattr(before, name) for name in loads})
    connection.execute(
        update(checkpoints)
        .where(checkpoints.c.id == checkpoint_id)
        .values(verified=found.ok, verification=found, checked_at=context.now())
    )


def _remove_row(connection: Connection, checkpoint_id: str) -> None:
    connection.execute(
        delete(checkpoints).where(
            checkpoints.c.id == checkpoint_id, checkpoints.c.deleting_since.is_not(None)
        )
    )


def _manifest(text: str, job_id: str, attempt: int) -> Manifest | None:
    """Return a manifest of the attempt; None where it is none that the catalog can hold."""
    try:
        manifest = Manifest.model_validate_json(text)
        check_manifest(manifest, job_id=job_id, attempt=attempt)
    except ValueError:
        return None
    return manifest
