"""The catalog of committed checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Connection, Table, and_, or_, select, update

from server.attempts.lineage import Lineage, attempts_of, lineage_of
from server.context import Context
from server.database.rows import TypedRow
from server.database.tables import checkpoints, jobs
from server.database.upsert import insert_absent
from server.errors import NotFoundError
from server.events.store import append_event
from server.lifecycle import check_job
from server.subject import Actor, Subject
from trainyard.protocol.manifest import Manifest, SaveSettled, checkpoint_path, split_checkpoint_id
from trainyard.protocol.operations import Verification
from trainyard.protocol.rest.event_data import CheckpointCommitted
from trainyard.protocol.rest.fork import DescendantView
from trainyard.protocol.rest.telemetry import CheckpointDetails, CheckpointView

MOST_DESCENDANTS = 100


@dataclass(frozen=True, slots=True)
class ListedCheckpoint(TypedRow):
    """What the list shows of a checkpoint."""

    table: ClassVar[Table] = checkpoints
    id: str
    job_id: str
    attempt: int
    step: int
    kind: str
    root: str
    path: str
    size: int
    files: int
    layout: str
    dtype: str | None
    save_seconds: float
    stall_seconds: float | None
    writers: int | None
    write_seconds: float | None
    parent_id: str | None
    created_at: datetime
    verification: Verification | None
    pinned_at: datetime | None
    pinned_by: str | None
    deleting_since: datetime | None


@dataclass(frozen=True, slots=True)
class DetailedCheckpoint(ListedCheckpoint):
    """A checkpoint with its manifest, which a list does not read."""

    manifest: Manifest


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
    """Enter a commit of an attempt with its event; return whether it was new.

    Args:
        context: the server's surroundings.
        connection: a transaction.
        attempt_id: the attempt that made it.
        manifest: what was committed.
        root: the storage root where it lies.
        actor: who reports it.
        found_by: the node that found it on storage, where the attempt did not report it itself.
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
    if not insert_absent(connection, checkpoints, [row]):
        return False
    found = f", found on storage by {found_by}" if found_by else ""
    append_event(
        context,
        connection,
        CheckpointCommitted(
            checkpoint_id=manifest.checkpoint_id,
            step=step,
            size=manifest.size,
            kind=manifest.kind,
        ),
        message=f"step {step} saved ({manifest.kind}){found}",
        actor=actor,
        subject=Subject(manifest.job_id, attempt=manifest.attempt, node=found_by),
    )
    return True


def record_stall(connection: Connection, attempt_id: str, settled: SaveSettled) -> bool:
    """Enter how long training waited for a save; return whether the attempt has the checkpoint."""
    table = checkpoints.c
    entered = connection.execute(
        update(checkpoints)
        .where(table.id == settled.checkpoint_id, table.attempt_id == attempt_id)
        .values(stall_seconds=settled.stall_seconds)
    )
    return entered.rowcount > 0


def list_checkpoints(
    context: Context, job_id: str, *, after: str | None = None, limit: int = 50
) -> list[CheckpointView]:
    """Return at most `limit` checkpoints of a job after an id, the newest attempt and step first.

    Raises:
        NotFoundError: there is no such job.
    """
    table = checkpoints.c
    query = ListedCheckpoint.select().where(table.job_id == job_id)
    if after is not None:
        _, attempt, step = split_checkpoint_id(after)
        older = or_(table.attempt < attempt, and_(table.attempt == attempt, table.step < step))
        query = query.where(older)
    with context.database.read() as connection:
        check_job(connection, job_id)
        newest_first = query.order_by(table.attempt.desc(), table.step.desc())
        rows = ListedCheckpoint.all(connection, newest_first.limit(limit))
        lineage = lineage_of(attempts_of(connection, job_id))
    return [CheckpointView(**_fields(row, lineage)) for row in rows]


def read_checkpoint(context: Context, checkpoint_id: str) -> CheckpointDetails:
    """Return one checkpoint with its manifest.

    Raises:
        NotFoundError: the catalog holds none of this id.
    """
    query = DetailedCheckpoint.select().where(checkpoints.c.id == checkpoint_id)
    with context.database.read() as connection:
        row = DetailedCheckpoint.one_or_none(connection, query)
        if row is None:
            raise NotFoundError(f"no checkpoint has the id {checkpoint_id!r}")
        lineage = lineage_of(attempts_of(connection, row.job_id))
        descendants = descendants_of(connection, checkpoint_id)
    return CheckpointDetails(
        **_fields(row, lineage), manifest=row.manifest, descendants=descendants
    )


def descendants_of(connection: Connection, checkpoint_id: str) -> tuple[DescendantView, ...]:
    """Return the jobs that were forked from a checkpoint, the oldest first."""
    rows = connection.execute(
        select(jobs.c.id, jobs.c.name, jobs.c.fork_parts)
        .where(jobs.c.forked_from == checkpoint_id)
        .order_by(jobs.c.id)
        .limit(MOST_DESCENDANTS)
    )
    return tuple(
        DescendantView(job_id=row.id, name=row.name, parts=tuple(row.fork_parts)) for row in rows
    )


def _fields(row: ListedCheckpoint, lineage: Lineage) -> dict[str, Any]:
    return {
        "id": row.id,
        "job_id": row.job_id,
        "attempt": row.attempt,
        "step": row.step,
        "kind": row.kind,
        "place": f"{row.root}:{row.path}",
        "size": row.size,
        "files": row.files,
        "layout": row.layout,
        "dtype": row.dtype,
        "save_seconds": row.save_seconds,
        "stall_seconds": row.stall_seconds,
        "writers": row.writers,
        "write_seconds": row.write_seconds,
        "parent": row.parent_id,
        "on_lineage": lineage.holds(number=row.attempt, step=row.step),
        "created_at": row.created_at,
        "verification": row.verification,
        "pinned_at": row.pinned_at,
        "pinned_by": row.pinned_by,
        "deleting": row.deleting_since is not None,
    }
