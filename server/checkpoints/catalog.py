"""The catalog of committed checkpoints: what a commit and an ended operation change in it."""

from __future__ import annotations

import math
import re

from sqlalchemy import Connection, delete, select, update

from server.attempts.launch import effective_spec
from server.checkpoints.deletion import apply_retention
from server.context import Context
from server.database.rows import Operation
from server.database.tables import attempts, checkpoints
from server.database.upsert import insert_absent
from server.events.store import NewEvent, append_event
from server.subject import RECOVERY, Actor, Subject
from trainyard.protocol.manifest import (
    DCP_METADATA,
    Manifest,
    SaveSettled,
    checkpoint_id,
    checkpoint_path,
)
from trainyard.protocol.operations import OperationKind, OperationOutcome, Verification
from trainyard.protocol.rest.event_data import CheckpointCommitted

MAX_STEP = 10**9
MAX_SIZE = 2**62
FIRST_YEAR, LAST_YEAR = 1970, 9998  # in the year 9999 the conversion to UTC can overflow
DIGEST = re.compile(r"[0-9a-f]{1,32}")
CHECKPOINT_KIND = re.compile(r"[a-z_]{1,16}")


def record_commit(
    context: Context,
    connection: Connection,
    attempt_id: str,
    manifest: Manifest,
    *,
    root: str,
    actor: Actor,
    found_by: str | None = None,
) -> bool:
    """Store a commit of an attempt with its event; return whether it was new.

    Args:
        context: the server's context.
        connection: a transaction that holds the job's lock.
        attempt_id: the attempt that saved it.
        manifest: its manifest.
        root: its storage root.
        actor: who reports it.
        found_by: the node that found it on storage, if the attempt did not report it.
    """
    step = manifest.train_state.step
    row = {
        "id": manifest.checkpoint_id,
        "job_id": manifest.job_id,
        "attempt_id": attempt_id,
        "attempt": manifest.attempt,
        "step": step,
        "kind": manifest.kind,
        "root": root,
        "path": checkpoint_path(manifest.job_id, manifest.attempt, step),
        "size": manifest.size,
        "files": len(manifest.files),
        "layout": str(manifest.layout),
        "dtype": manifest.param_dtype,
        "save_seconds": manifest.save_seconds,
        "writers": len(manifest.writers) or None,
        "write_seconds": manifest.write_seconds,
        "parent_id": manifest.parent,
        "metadata_digest": manifest.metadata_digest,
        "manifest": manifest,
        "created_at": manifest.created_at,
    }
    # A report is repeated until it is acknowledged: the second one changes nothing.
    if not insert_absent(connection, checkpoints, [row]):
        return False
    found = f", found on storage by {found_by}" if found_by else ""
    event = NewEvent(
        CheckpointCommitted(
            checkpoint_id=manifest.checkpoint_id,
            step=step,
            size=manifest.size,
            kind=manifest.kind,
        ),
        actor,
        Subject(manifest.job_id, attempt=manifest.attempt, node=found_by),
        f"step {step} saved ({manifest.kind}){found}",
    )
    append_event(context, connection, event)
    return True


def record_stall(connection: Connection, attempt_id: str, settled: SaveSettled) -> bool:
    """Store the seconds that training waited for a save; return whether its checkpoint exists."""
    table = checkpoints.c
    entered = connection.execute(
        update(checkpoints)
        .where(table.id == settled.checkpoint_id, table.attempt_id == attempt_id)
        .values(stall_seconds=settled.stall_seconds)
    )
    return entered.rowcount > 0


def check_manifest(manifest: Manifest, *, job_id: str, attempt: int) -> None:
    """Reject a manifest of another attempt, or with values that the catalog cannot hold.

    Raises:
        ValueError: names the value.
    """
    step = manifest.train_state.step
    mine = checkpoint_id(job_id, attempt, step)
    if (manifest.checkpoint_id, manifest.job_id, manifest.attempt) != (mine, job_id, attempt):
        raise ValueError(f"{manifest.checkpoint_id[:120]!r} is not of attempt {attempt}")
    for seconds in (manifest.save_seconds, manifest.write_seconds or 0.0):
        check_moment(step, seconds)
    if not CHECKPOINT_KIND.fullmatch(manifest.kind):
        raise ValueError(f"{manifest.kind[:40]!r} is no kind of checkpoint")
    if not DIGEST.fullmatch(manifest.metadata_digest):
        raise ValueError(f"{DCP_METADATA} without a checksum")
    if manifest.size > MAX_SIZE or manifest.created_at.tzinfo is None:
        raise ValueError(
            f"size {manifest.size} is above {MAX_SIZE}, or created_at has no time zone"
        )
    if not FIRST_YEAR <= manifest.created_at.year <= LAST_YEAR:
        raise ValueError(f"created_at {manifest.created_at} is not {FIRST_YEAR} to {LAST_YEAR}")


def check_moment(step: int, seconds: float) -> None:
    """Reject a step or a time that the database cannot hold.

    Raises:
        ValueError: names the value.
    """
    if not 0 <= step <= MAX_STEP:
        raise ValueError(f"step {step} is not 0 to {MAX_STEP}")
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} seconds are not finite")


def apply_outcome(
    context: Context, connection: Connection, operation: Operation, outcome: OperationOutcome
) -> tuple[OperationOutcome, bool | None]:
    """Apply the outcome of an operation to the catalog; its job is locked if it still exists.

    Returns:
        The outcome to store, without what the catalog holds now, and the result of a verification.
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
    """Store the commits that a recovery found; the job is locked if it still exists."""
    task = operation.task.recover
    assert task is not None, "a recovery has its task"
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
    """Store a verification; a scrub without a fault keeps when all tensors were last loaded."""
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
    """Return a manifest of the attempt; None if the catalog cannot hold it."""
    try:
        manifest = Manifest.model_validate_json(text)
        check_manifest(manifest, job_id=job_id, attempt=attempt)
    except ValueError:
        return None
    return manifest
