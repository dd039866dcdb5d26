"""Deletion guards, evaluated inside the deleting transaction."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import Connection, Table, and_, exists, func, or_, select

from server.database.rows import CheckpointHead, JobHead, Operation, TypedRow
from server.database.tables import attempts, checkpoints, jobs, operations
from server.operations.store import open_operations
from trainyard.protocol.operations import USES
from trainyard.protocol.states import LIVE_ATTEMPT_STATES, JobState


@dataclass(frozen=True, slots=True)
class ForkedJob(TypedRow):
    """A job that starts from a checkpoint of another one."""

    table: ClassVar[Table] = jobs
    name: str
    forked_from: str | None


def being_loaded(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return those that a live attempt has not gone on from yet, or a pending launch names.

    An attempt has loaded its checkpoint for certain when it has made a step of its own.
    """
    loading = connection.scalars(
        select(attempts.c.parent_checkpoint_id).where(
            attempts.c.parent_checkpoint_id.in_(ids),
            attempts.c.state.in_(sorted(LIVE_ATTEMPT_STATES)),
            attempts.c.last_step <= attempts.c.start_step,
        )
    )
    found = {str(identifier) for identifier in loading}
    pending = connection.scalars(select(jobs.c.pending).where(jobs.c.pending.is_not(None)))
    return found | {p.checkpoint_id for p in pending if p.checkpoint_id in ids}


def gone_on_from_elsewhere(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return those from which another job was forked."""
    found = connection.scalars(select(jobs.c.forked_from).where(jobs.c.forked_from.in_(ids)))
    return {str(identifier) for identifier in found}


def being_used(connection: Connection, ids: Collection[str]) -> dict[str, Operation]:
    """Return of each of these an open operation that reads it for a person."""
    return {
        row.checkpoint_id: row
        for row in open_operations(connection, USES, operations.c.checkpoint_id.in_(ids))
        if row.checkpoint_id is not None
    }


def needing_job(connection: Connection, ids: Collection[str]) -> ForkedJob | None:
    """Return a job that was forked from one of these and has saved nothing of its own yet."""
    saved = exists().where(checkpoints.c.job_id == jobs.c.id)
    query = ForkedJob.select().where(
        jobs.c.state != JobState.SUCCEEDED, jobs.c.forked_from.in_(ids), ~saved
    )
    return ForkedJob.one_or_none(connection, query.limit(1))


def in_use(operation: Operation) -> str:
    """Return why an open operation forbids the deletion of its checkpoint."""
    return (
        f"{operation.checkpoint_id}: operation {operation.id} ({operation.kind}, asked for by "
        f"{operation.actor}) is "
        f"{operation.state}; wait for its end, or take it back"
    )


def objection(connection: Connection, job: JobHead, checkpoint: CheckpointHead) -> str | None:
    """Return why a person may not delete a checkpoint now; None when it may go."""
    identifier = checkpoint.id
    if checkpoint.pinned_at is not None:
        return f"{identifier} was pinned by {checkpoint.pinned_by}; unpin it first"
    if being_loaded(connection, {identifier}):
        return f"{identifier} is what an attempt goes on from just now; wait for its first step"
    if use := being_used(connection, {identifier}).get(identifier):
        return in_use(use)
    if other := needing_job(connection, {identifier}):
        return f"{other.name} came from {identifier} and has saved nothing of its own yet"
    if job.state == JobState.SUCCEEDED or checkpoint.verified is False:
        return None
    others = and_(
        checkpoints.c.job_id == job.id,
        checkpoints.c.id != identifier,
        checkpoints.c.deleting_since.is_(None),
        or_(checkpoints.c.verified.is_(None), checkpoints.c.verified.is_(True)),
    )
    total, verified = connection.execute(
        select(func.count(), func.count().filter(checkpoints.c.verified)).where(others)
    ).one()
    if total == 0:
        return (
            f"{identifier} is all that is left of {job.name}, which is {job.state}; "
            "delete the job with its checkpoints instead"
        )
    if checkpoint.verified and verified == 0:
        return f"{identifier} is the only verified checkpoint of {job.name}; verify another first"
    return None
