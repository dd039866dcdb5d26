"""What people and retention do with checkpoints: verify, pin, unpin, delete."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from server.attempts.lineage import attempts_of, lineage_of
from server.checkpoints.metric_lookup import Measured, measure
from server.checkpoints.protection import (
    being_loaded,
    being_used,
    gone_on_from_elsewhere,
    in_use,
    needing_job,
    objection,
)
from server.checkpoints.retention import Candidate, let_go
from server.context import Context
from server.database.rows import Checkpoint, CheckpointHead, JobHead
from server.database.tables import checkpoints, jobs
from server.errors import ConflictError, NotFoundError
from server.events.store import append_event
from server.lifecycle import lock_job
from server.operations.store import cancel_looks, queue_operation
from server.subject import RETENTION, Actor, Subject
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.operations import OperationKind, OperationTask
from trainyard.protocol.rest.event_data import CheckpointPinned
from trainyard.spec.sections.checkpoint import CheckpointSection


def verify(context: Context, checkpoint_id: str, *, actor: Actor) -> str:
    """Queue a verification, and return the operation's id; a repeat returns the open one's.

    Raises:
        NotFoundError: the catalog holds none of this id.
        ConflictError: it is to be deleted.
    """
    with context.database.write() as connection:
        job, checkpoint = locked_to_stay(connection, checkpoint_id)
        return queue_look(context, connection, job, checkpoint, OperationKind.VERIFY, actor=actor)


def queue_look(
    context: Context,
    connection: Connection,
    job: JobHead,
    checkpoint: CheckpointHead,
    kind: OperationKind,
    *,
    actor: Actor,
    reason: str = "",
) -> str:
    """Queue a verification or a scrub of a checkpoint; the job is locked."""
    task = OperationTask(
        kind=kind,
        job_id=job.id,
        root=checkpoint.root,
        paths=(checkpoint.path,),
        checkpoint=point_of(checkpoint),
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


def point_of(checkpoint: CheckpointHead) -> ResumePoint:
    """Return which checkpoint an operation must find."""
    return ResumePoint(
        checkpoint_id=checkpoint.id,
        path=checkpoint.path,
        step=checkpoint.step,
        metadata_digest=checkpoint.metadata_digest,
    )


def set_pin(context: Context, checkpoint_id: str, *, pinned: bool, actor: Actor) -> None:
    """Exempt a checkpoint from retention, or no longer; a repeat changes nothing.

    Raises:
        NotFoundError: the catalog holds none of this id.
        ConflictError: it is to be deleted.
    """
    with context.database.write() as connection:
        job, checkpoint = locked_to_stay(connection, checkpoint_id)
        if (checkpoint.pinned_at is not None) == pinned:
            return
        values = {
            "pinned_at": context.now() if pinned else None,
            "pinned_by": actor.name if pinned else None,
        }
        connection.execute(
            update(checkpoints).where(checkpoints.c.id == checkpoint_id).values(values)
        )
        append_event(
            context,
            connection,
            CheckpointPinned(checkpoint_id=checkpoint_id, pinned=pinned),
            message=f"{checkpoint_id} is {'pinned' if pinned else 'no longer pinned'}",
            actor=actor,
            subject=Subject(job.id),
        )


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
            reason = objection(connection, job, checkpoint)
            if reason is not None:
                raise ConflictError(reason)
        return _remove(context, connection, job, checkpoint, actor=actor, reason="")


def apply_retention(
    context: Context, connection: Connection, job_id: str, section: CheckpointSection
) -> list[str]:
    """Let go what a job's settings no longer keep; the job is locked, its newest commit stored.

    Returns the ids of the checkpoints that are to go.
    """
    if section.keep_latest_k == 0:
        return []
    lineage = lineage_of(attempts_of(connection, job_id))
    table = checkpoints.c
    staying = (table.job_id == job_id, table.deleting_since.is_(None))
    rows = CheckpointHead.all(connection, CheckpointHead.select().where(*staying))
    held = {row.id: row for row in rows if lineage.holds(number=row.attempt, step=row.step)}
    needed = being_loaded(connection, held.keys())
    needed |= gone_on_from_elsewhere(connection, held.keys())
    needed |= being_used(connection, held.keys()).keys()
    metric = section.keep_best_metric if section.keep_best_k else None
    steps = {row.step for row in held.values()}
    measured = measure(connection, lineage, metric, steps) if metric else Measured()
    going = let_go(
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
    """Refuse to forget the checkpoints of a job while another one could start from nothing else.

    Raises:
        ConflictError: a fork has saved nothing of its own yet.
    """
    ids = connection.scalars(select(checkpoints.c.id).where(checkpoints.c.job_id == job_id)).all()
    if other := needing_job(connection, ids):
        raise ConflictError(
            f"{other.name} came from {other.forked_from} and has saved nothing of its own"
        )


def remove_with_job(
    context: Context, connection: Connection, job: JobHead, *, actor: Actor
) -> list[str]:
    """Queue the deletion of all that a job saved, before its rows go; return the operations' ids.

    Raises:
        ConflictError: a checkpoint is pinned, or an operation uses it.
    """
    mine = CheckpointHead.select().where(checkpoints.c.job_id == job.id)
    rows = CheckpointHead.all(connection, mine)
    pinned = sorted(row.id for row in rows if row.pinned_at is not None)
    if pinned:
        raise ConflictError(f"{', '.join(pinned[:5])} is pinned; unpin it first")
    for operation in being_used(connection, [row.id for row in rows]).values():
        raise ConflictError(in_use(operation))
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
        row = Checkpoint.one_or_none(connection, found)  # it may have gone meanwhile
        if row is not None:
            return _job(connection, job_id), row
    raise NotFoundError(f"no checkpoint has the id {checkpoint_id!r}")


def locked_to_stay(connection: Connection, checkpoint_id: str) -> tuple[JobHead, Checkpoint]:
    """Lock the job of a checkpoint, and return both rows.

    Raises:
        NotFoundError: the catalog holds none of this id.
        ConflictError: it is to be deleted.
    """
    job, checkpoint = _locked(connection, checkpoint_id)
    if checkpoint.deleting_since is not None:
        raise ConflictError(f"{checkpoint_id} is being deleted")
    return job, checkpoint


def _job(connection: Connection, job_id: str) -> JobHead:
    return JobHead.one(connection, JobHead.select().where(jobs.c.id == job_id))
