"""The catalog of committed checkpoints, and its updates by commits and ended operations."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, delete, select, update

from server.core.context import Context
from server.core.database.rows import Operation
from server.core.database.tables import attempts, checkpoints
from server.core.database.upsert import insert_absent
from server.core.errors import UnreadableError
from server.core.events.store import NewEvent, append_event
from server.core.subject import RECOVERY, Actor, Subject
from server.jobs.attempts.launch import effective_spec
from server.jobs.checkpoints.deletion import Measure, apply_retention
from server.jobs.checkpoints.queue_auto_export import queue_auto_export
from trainyard.base.whole_numbers import LAST_STEP
from trainyard.protocol.manifest import Manifest, SaveSettled, parse_manifest
from trainyard.protocol.operations import OperationKind, OperationOutcome
from trainyard.protocol.rest.event_data import CheckpointCommitted
from trainyard.run.checkpoints.checkpoint_names import checkpoint_id, checkpoint_path
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.figures import duration
from trainyard.spec.layout import Layout

MAX_SIZE = 2**62
FIRST_YEAR, LAST_YEAR = 1970, 9998  # the conversion of the year 9999 to UTC can overflow
DIGEST = re.compile(r"[0-9a-f]{1,32}")
CHECKPOINT_KIND = re.compile(r"[a-z_]{1,16}")


def record_commits(
    context: Context,
    connection: Connection,
    *,
    attempt_id: str,
    manifests: Sequence[Manifest | ProgramManifest],
    actor: Actor,
    measure: Measure,
    found_by: str | None = None,
) -> None:
    """Store an attempt's commits with their events; after a new commit, apply retention, and queue
    an automatic export.

    The caller holds the job's lock, so no concurrent commit applies retention to the same
    checkpoints. The manifests are sorted by step. `found_by` is the node that found the commits on
    storage; None if the attempt reported them.
    """
    section = effective_spec(connection, attempt_id).checkpoint
    # A report is repeated until it is acknowledged, so a repeated commit changes nothing.
    new = [
        manifest
        for manifest in manifests
        if insert_absent(connection, checkpoints, [_row(attempt_id, manifest, section.root)])
    ]
    if reached := [m.step for m in new if found_by or isinstance(m, ProgramManifest)]:
        # A lost attempt or a program may not have reported these steps before.
        behind = (attempts.c.id == attempt_id) & (attempts.c.last_step < max(reached))
        connection.execute(update(attempts).where(behind).values(last_step=max(reached)))
    found = f", found on storage by {found_by}" if found_by else ""
    for manifest in new:
        step, size, kind = manifest.step, manifest.size, manifest.kind
        committed = CheckpointCommitted(
            checkpoint_id=manifest.checkpoint_id, step=step, size=size, kind=kind
        )
        subject = Subject(manifest.job_id, attempt=manifest.attempt, node=found_by)
        message = f"step {step} saved ({kind}){found}"
        append_event(context, connection, NewEvent(committed, actor, subject, message))
    if new:
        saved = update(attempts).where(attempts.c.id == attempt_id)
        connection.execute(saved.values(save_failed=None))
        job_id = new[0].job_id
        apply_retention(context, connection, job_id=job_id, section=section, measure=measure)
        if section.export != "none":
            queue_auto_export(context, connection, job_id=job_id)


def _row(attempt_id: str, manifest: Manifest | ProgramManifest, root: str) -> dict[str, Any]:
    of_trainer: dict[str, Any]
    if isinstance(manifest, Manifest):
        of_trainer = {
            "layout": str(manifest.layout),
            "dtype": manifest.param_dtype,
            "writers": len(manifest.writers) or None,
        }
    else:  # only the program knows which ranks wrote what
        slots = Layout(dp_shard=manifest.world_size).slots_in_words
        of_trainer = {"layout": slots, "dtype": None, "writers": None}
    return of_trainer | {
        "id": manifest.checkpoint_id,
        "job_id": manifest.job_id,
        "attempt_id": attempt_id,
        "attempt": manifest.attempt,
        "step": manifest.step,
        "kind": manifest.kind,
        "root": root,
        "path": checkpoint_path(manifest.job_id, manifest.attempt, manifest.step),
        "size": manifest.size,
        "files": len(manifest.files),
        "save_seconds": duration(manifest.save_seconds) or 0.0,
        "write_seconds": duration(manifest.write_seconds),
        "parent_id": manifest.parent,
        "metadata_digest": manifest.metadata_digest,
        "manifest": manifest,
        "created_at": manifest.created_at,
    }


def record_stall(connection: Connection, attempt_id: str, settled: SaveSettled) -> bool:
    """Store the seconds that training waited for a save; return whether the checkpoint exists."""
    of_attempt = checkpoints.c.attempt_id == attempt_id
    saved = update(checkpoints).where(checkpoints.c.id == settled.checkpoint_id, of_attempt)
    stall_seconds = duration(settled.stall_seconds)
    return connection.execute(saved.values(stall_seconds=stall_seconds)).rowcount > 0


def check_manifest(manifest: Manifest | ProgramManifest, *, job_id: str, attempt: int) -> None:
    """Reject a manifest of another attempt, or one with values that the catalog cannot hold.

    Raises:
        ValueError: the manifest is rejected; the message has the reason.
    """
    mine = checkpoint_id(job_id, attempt, manifest.step)
    if (manifest.checkpoint_id, manifest.job_id, manifest.attempt) != (mine, job_id, attempt):
        raise ValueError(f"{manifest.checkpoint_id[:120]!r} is not of attempt {attempt}")
    for seconds in (manifest.save_seconds, manifest.write_seconds or 0.0):
        check_moment(manifest.step, seconds)
    if isinstance(manifest, ProgramManifest) and manifest.disagreement is not None:
        raise ValueError(manifest.disagreement)
    if not CHECKPOINT_KIND.fullmatch(manifest.kind):
        raise ValueError(f"{manifest.kind[:40]!r} is no kind of checkpoint")
    if not DIGEST.fullmatch(manifest.metadata_digest):
        raise ValueError("the index is without a checksum")
    if manifest.size > MAX_SIZE or manifest.created_at.tzinfo is None:
        raise ValueError(
            f"size {manifest.size} is above {MAX_SIZE}, or created_at has no time zone"
        )
    if not FIRST_YEAR <= manifest.created_at.year <= LAST_YEAR:
        raise ValueError(f"created_at {manifest.created_at} is not {FIRST_YEAR} to {LAST_YEAR}")


def check_moment(step: int, seconds: float) -> None:
    """Reject a step or a time that the database cannot hold.

    Raises:
        ValueError: a value is out of range; the message names the value.
    """
    if not 0 <= step <= LAST_STEP:
        raise ValueError(f"step {step} is not 0 to {LAST_STEP}")
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} seconds are not finite")


def apply_outcome(
    context: Context,
    connection: Connection,
    operation: Operation,
    outcome: OperationOutcome,
    *,
    measure: Measure,
) -> tuple[OperationOutcome, bool | None]:
    """Apply an operation's outcome to the catalog; the caller has locked the job if it exists.

    The result is the outcome to store, and whether a verified checkpoint is intact (None if the
    operation verified none). The outcome to store omits commits, because the catalog now has them.
    """
    if outcome.outcome != "succeeded":
        return outcome, None
    if operation.kind == OperationKind.AUTO_EXPORT:
        with suppress(UnreadableError):  # the export has ended, whatever the job's spec is
            queue_auto_export(context, connection, job_id=operation.job_id, ended=operation.id)
        return outcome, None
    if operation.kind == OperationKind.RECOVER:
        _enter_recovered(
            context, connection, operation=operation, texts=outcome.commits, measure=measure
        )
        return outcome.model_copy(update={"commits": ()}), None
    if operation.checkpoint_id is None:
        return outcome, None
    mine, found = checkpoints.c.id == operation.checkpoint_id, outcome.verification
    if operation.kind == OperationKind.DELETE:
        marked = checkpoints.c.deleting_since.is_not(None)
        connection.execute(delete(checkpoints).where(mine, marked))
        return outcome, None
    if found is None:
        return outcome, None
    before = connection.scalar(select(checkpoints.c.verification).where(mine))
    if found.ok and found.loaded_at is None and before is not None and before.ok:
        # A successful scrub keeps the record of the last full load.
        loads = ("loaded_at", "loaded_on", "tensors")
        found = found.model_copy(update={name: getattr(before, name) for name in loads})
    values = {"verified": found.ok, "verification": found, "checked_at": context.now()}
    connection.execute(update(checkpoints).where(mine).values(values))
    return outcome, found.ok


def _enter_recovered(
    context: Context,
    connection: Connection,
    *,
    operation: Operation,
    texts: tuple[str, ...],
    measure: Measure,
) -> None:
    """Store the commits that a recovery found; the caller has locked the job if it exists."""
    task = operation.task.recover
    assert task is not None, "a recovery has its task"
    of_attempt = (attempts.c.job_id == operation.job_id, attempts.c.number == task.attempt)
    attempt_id = connection.scalar(select(attempts.c.id).where(*of_attempt))
    if attempt_id is None:
        return  # the job was deleted meanwhile
    found: list[Manifest | ProgramManifest] = []
    for text in texts:
        with suppress(ValueError):  # unless the catalog cannot hold the value
            manifest = parse_manifest(text)
            check_manifest(manifest, job_id=operation.job_id, attempt=task.attempt)
            found.append(manifest)
    if not found:
        return
    record_commits(
        context,
        connection,
        attempt_id=attempt_id,
        manifests=sorted(found, key=lambda manifest: manifest.step),
        actor=RECOVERY,
        measure=measure,
        found_by=operation.node,
    )
