"""Deletion of checkpoints: by a person, with a job, by retention; its guards and its operation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import orjson
from sqlalchemy import Connection, Table, Text, and_, exists, func, or_, select, type_coerce, update

from server.attempts.lineage import attempts_of, lineage_of
from server.checkpoints.queries import Measured, measure
from server.checkpoints.retention import Candidate, deletable
from server.context import Context
from server.database.rows import Checkpoint, CheckpointHead, JobHead, Operation, TypedRow
from server.database.tables import attempts, checkpoints, jobs, operations
from server.errors import ConflictError, NotFoundError
from server.lifecycle import lock_job
from server.operations.queries import open_operations
from server.operations.service import cancel_looks, queue_operation
from server.subject import RETENTION, Actor
from trainyard.protocol.operations import USES, OperationKind, OperationTask
from trainyard.protocol.states import LIVE_ATTEMPT_STATES, JobState
from trainyard.spec.sections.checkpoint import CheckpointSection


@dataclass(frozen=True, slots=True)
class ForkedJob(TypedRow):
    """A job that was forked from a checkpoint of another one."""

    table: ClassVar[Table] = jobs
    name: str
    forked_from: str | None


def _being_loaded(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return those that a live attempt may still load, or that a pending launch names.

    An attempt has certainly loaded its checkpoint once it has taken a step.
    """
    loading = connection.scalars(
        select(attempts.c.parent_checkpoint_id).where(
            attempts.c.parent_checkpoint_id.in_(ids),
            attempts.c.state.in_(sorted(LIVE_ATTEMPT_STATES)),
            attempts.c.last_step <= attempts.c.start_step,
        )
    )
    found = {str(identifier) for identifier in loading}
    # One field of the JSON text: an unreadable launch of one job must not refuse commits of all.
    launches = select(type_coerce(jobs.c.pending, Text)).where(jobs.c.pending.is_not(None))
    named = (orjson.loads(launch).get("checkpoint_id") for launch in connection.scalars(launches))
    return found | {identifier for identifier in named if identifier in ids}


def _origins_of_forks(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return those from which a job was forked."""
    found = connection.scalars(select(jobs.c.forked_from).where(jobs.c.forked_from.in_(ids)))
    return {str(identifier) for identifier in found}


def _used_by_operations(connection: Connection, ids: Collection[str]) -> dict[str, Operation]:
    """Return an open export or sample of each of these that has one."""
    return {
        row.checkpoint_id: row
        for row in open_operations(connection, USES, operations.c.checkpoint_id.in_(ids))
        if row.checkpoint_id is not None
    }


def _dependent_job(connection: Connection, ids: Collection[str]) -> ForkedJob | None:
    """Return a job that was forked from one of these and has saved no checkpoint."""
    saved = exists().where(checkpoints.c.job_id == jobs.c.id)
    query = ForkedJob.select().where(
        jobs.c.state != JobState.SUCCEEDED, jobs.c.forked_from.in_(ids), ~saved
    )
    return ForkedJob.one_or_none(connection, query.limit(1))


def _in_use(operation: Operation) -> str:
    """Return why an open operation forbids the deletion of its checkpoint."""
    return (
        f"{operation.checkpoint_id}: operation {operation.id} ({operation.kind}, requested by "
        f"{operation.actor}) is {operation.state}; wait for its end, or cancel it"
    )


def _violated_guard(connection: Connection, job: JobHead, checkpoint: CheckpointHead) -> str | None:
    """Return which guard forbids a person to delete a checkpoint; None if none does.

    It runs in the transaction that marks the checkpoint, under the job's lock. Placement takes that
    lock too: no attempt can start to load the checkpoint in between.
    """
    identifier = checkpoint.id
    if checkpoint.pinned_at is not None:
        return f"{identifier} was pinned by {checkpoint.pinned_by}; unpin it first"
    if _being_loaded(connection, {identifier}):
        return f"{identifier} is being loaded by an attempt; wait for its first step"
    if use := _used_by_operations(connection, {identifier}).get(identifier):
        return _in_use(use)
    if other := _dependent_job(connection, {identifier}):
        return f"{other.name} was forked from {identifier} and has saved no checkpoint yet"
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
            f"{identifier} is the last checkpoint of {job.name}, which is {job.state}; "
            "delete the job with its checkpoints instead"
        )
    if checkpoint.verified and verified == 0:
        return f"{identifier} is the only verified checkpoint of {job.name}; verify another first"
    return None


def delete(context: Context, checkpoint_id: str, *, actor: Actor) -> str:
    """Mark a checkpoint and queue its deletion; return the operation's id.

    A repeat returns the operation that is open, or queues another one where the last has failed.

    Raises:
        NotFoundError: the catalog holds none of this id.
        ConflictError: a deletion guard forbids it, which the message names.
    """
    with context.database.write() as connection:
        job, checkpoint = _locked(connection, checkpoint_id)
        if checkpoint.deleting_since is None:
            reason = _violated_guard(connection, job, checkpoint)
            if reason is not None:
                raise ConflictError(reason)
        return _remove(context, connection, job, checkpoint, actor=actor, reason="")


def apply_retention(
    context: Context, connection: Connection, job_id: str, section: CheckpointSection
) -> list[str]:
    """Queue the deletion of what a job's settings no longer keep; return the checkpoints' ids.

    The caller holds the job's lock and has stored its newest commit.
    """
    if section.keep_latest_k == 0:
        return []
    lineage = lineage_of(attempts_of(connection, job_id))
    table = checkpoints.c
    staying = (table.job_id == job_id, table.deleting_since.is_(None))
    rows = CheckpointHead.all(connection, CheckpointHead.select().where(*staying))
    held = {row.id: row for row in rows if lineage.holds(number=row.attempt, step=row.step)}
    needed = _being_loaded(connection, held.keys())
    needed |= _origins_of_forks(connection, held.keys())
    needed |= _used_by_operations(connection, held.keys()).keys()
    metric = section.keep_best_metric if section.keep_best_k else None
    steps = {row.step for row in held.values()}
    measured = measure(connection, lineage, metric, steps) if metric else Measured()
    going = deletable(
        section,
        [
            Candidate(
                id=row.id,
                attempt=row.attempt,
                step=row.step,
                verified=row.verified,
                protected=row.pinned_at is not None or row.id in needed,
                value=measured.values.get(row.step),
                awaited=row.step in measured.awaited,
            )
            for row in held.values()
        ],
    )
    if not going:
        return []
    job = _job(connection, job_id)
    reason = f"keep_latest_k={section.keep_latest_k}"
    if section.keep_every_steps:
        reason += f", keep_every_steps={section.keep_every_steps}"
    if metric:
        reason += f", keep_best_k={section.keep_best_k} by {metric}"
    for candidate in going:
        row = held[candidate.id]
        _remove(context, connection, job, row, actor=RETENTION, reason=reason)
    return [candidate.id for candidate in going]


def refuse_while_needed(connection: Connection, job_id: str) -> None:
    """Reject the deletion of a job whose checkpoints are all that a fork can start from.

    Raises:
        ConflictError: a fork has saved no checkpoint yet.
    """
    ids = connection.scalars(select(checkpoints.c.id).where(checkpoints.c.job_id == job_id)).all()
    if other := _dependent_job(connection, ids):
        raise ConflictError(
            f"{other.name} was forked from {other.forked_from} and has saved no checkpoint yet"
        )


def remove_with_job(
    context: Context, connection: Connection, job: JobHead, *, actor: Actor
) -> list[str]:
    """Queue the deletion of all checkpoints of a job, before its rows; return the operations' ids.

    Raises:
        ConflictError: a checkpoint is pinned, or an operation uses it.
    """
    mine = CheckpointHead.select().where(checkpoints.c.job_id == job.id)
    rows = CheckpointHead.all(connection, mine)
    pinned = sorted(row.id for row in rows if row.pinned_at is not None)
    if pinned:
        raise ConflictError(f"{', '.join(pinned[:5])} is pinned; unpin it first")
    for operation in _used_by_operations(connection, [row.id for row in rows]).values():
        raise ConflictError(_in_use(operation))
    cancel_looks(context, connection, job_id=job.id, checkpoint_id=None, actor=actor)
    return [
        queue_operation(
            context,
            connection,
            OperationTask(
                kind=OperationKind.DELETE,
                job_id=job.id,
                root=root,
                paths=tuple(sorted(row.path for row in rows if row.root == root)),
                whole_job=True,
            ),
            job=job,
            checkpoint_id=None,
            actor=actor,
            reason=f"{job.name} was deleted",
        )
        for root in sorted({row.root for row in rows})
    ]


def _remove(
    context: Context,
    connection: Connection,
    job: JobHead,
    checkpoint: CheckpointHead,
    *,
    actor: Actor,
    reason: str,
) -> str:
    # Mark and operation in one transaction: from here on no placement, fork, export or sample takes
    # the checkpoint, and a mark without an operation cannot exist.
    connection.execute(
        update(checkpoints)
        .where(checkpoints.c.id == checkpoint.id, checkpoints.c.deleting_since.is_(None))
        .values(deleting_since=context.now())
    )
    cancel_looks(context, connection, job_id=job.id, checkpoint_id=checkpoint.id, actor=actor)
    task = OperationTask(
        kind=OperationKind.DELETE, job_id=job.id, root=checkpoint.root, paths=(checkpoint.path,)
    )
    return queue_operation(
        context,
        connection,
        task,
        job=job,
        checkpoint_id=checkpoint.id,
        actor=actor,
        reason=reason,
    )


def _locked(connection: Connection, checkpoint_id: str) -> tuple[JobHead, Checkpoint]:
    """Lock the job of a checkpoint, and return both rows."""
    found = Checkpoint.select().where(checkpoints.c.id == checkpoint_id)
    job_id = connection.scalar(
        select(checkpoints.c.job_id).where(checkpoints.c.id == checkpoint_id)
    )
    if job_id is not None:
        lock_job(connection, job_id)
        row = Checkpoint.one_or_none(
            connection, found
        )  # again, under the lock: it may be deleted by now
        if row is not None:
            return _job(connection, job_id), row
    raise NotFoundError(f"no checkpoint has the id {checkpoint_id!r}")


def locked_to_stay(connection: Connection, checkpoint_id: str) -> tuple[JobHead, Checkpoint]:
    """Lock the job of a checkpoint, and return both rows.

    Raises:
        NotFoundError: the catalog holds none of this id.
        ConflictError: it is being deleted.
    """
    job, checkpoint = _locked(connection, checkpoint_id)
    if checkpoint.deleting_since is not None:
        raise ConflictError(f"{checkpoint_id} is being deleted")
    return job, checkpoint


def _job(connection: Connection, job_id: str) -> JobHead:
    return JobHead.one(connection, JobHead.select().where(jobs.c.id == job_id))
