"""Deletion of checkpoints by retention, by a person, or with a job; each queues an operation.

Retention decides with a pure function of the catalog's rows (`deletable`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, update

from server.api.auth.endings import write_as
from server.core.context import Context
from server.core.database.rows import CheckpointHead, JobHead
from server.core.database.tables import checkpoints, jobs, operations
from server.core.errors import ConflictError
from server.core.subject import RETENTION, Actor
from server.jobs.attempts.lineage import Lineage, attempts_of, lineage_of
from server.jobs.checkpoints.guards import (
    in_use,
    lock_checkpoint,
    operations_on,
    protected,
    violated_guard,
)
from server.jobs.operations.service import cancel_looks, queue_operation
from trainyard.protocol.operations import OperationKind, OperationTask
from trainyard.protocol.rest.access import Permission
from trainyard.spec.sections.checkpoint import CheckpointSection


@dataclass(frozen=True)
class Measured:
    """Values of a metric at some steps of the current lineage."""

    values: dict[int, float] = field(default_factory=dict)
    """Finite values by step."""
    awaited: frozenset[int] = frozenset()
    """Steps without metrics so far; a live attempt may still report these metrics."""


Measure = Callable[[Connection, Lineage, str, Collection[int]], Measured]
"""Function that returns the values of a metric at some steps of a lineage. Callers pass this
function, because the metrics belong to a layer above.
"""


@dataclass(frozen=True)
class Candidate:
    """A checkpoint of the current lineage without a deletion mark."""

    id: str
    attempt: int
    step: int
    verified: bool | None = None
    """Result of the newest verification; None until the first verification."""
    protected: bool = False
    """Whether the checkpoint is pinned, being loaded, used by an operation, or the origin of a
    fork."""
    value: float | None = None
    """Value of `keep_best_metric` at the checkpoint's step; None if there is no value."""
    awaited: bool = False
    """Whether the value of `keep_best_metric` may still be reported."""

    @property
    def order(self) -> tuple[int, int]:
        """Sort key by age: step, then attempt."""
        return self.step, self.attempt


def deletable(section: CheckpointSection, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the checkpoints that may be deleted now, oldest first.

    The function keeps the checkpoints of the newest `keep_latest_k` steps, of the multiples of
    `keep_every_steps`, of the steps with the `keep_best_k` lowest values, and of the steps with an
    awaited value. For these rules, only the newest undamaged checkpoint of a step counts. The
    function also keeps protected checkpoints, the newest undamaged checkpoint (the newest damaged
    one if all are damaged), and at least one verified checkpoint. It keeps everything if
    `keep_latest_k` is 0.
    """
    if section.keep_latest_k == 0:
        return []
    ordered = sorted(candidates, key=lambda candidate: candidate.order)
    sound = [candidate for candidate in ordered if candidate.verified is not False]
    by_step = {candidate.step: candidate for candidate in sound}  # the newest attempt's one wins
    kept = {c.id for c in list(by_step.values())[-section.keep_latest_k :]}
    every = section.keep_every_steps
    kept |= {c.id for c in by_step.values() if every and c.step > 0 and c.step % every == 0}
    if section.keep_best_k:
        kept |= _best(by_step.values(), section.keep_best_k)
    kept |= {c.id for c in ordered if c.protected}
    if not sound:  # a person decides about the newest damaged one
        kept |= {c.id for c in ordered[-1:]}
    return [c for c in ordered if c.id not in kept | _last_verified(sound, kept)]


def _best(candidates: Collection[Candidate], count: int) -> set[str]:
    """Return the ids of checkpoints with an awaited value or one of the `count` lowest values.

    Of checkpoints with equal values, the newer is preferred.
    """
    known = [(c.value, -c.step, c.id) for c in candidates if c.value is not None]
    least = {identifier for _, _, identifier in sorted(known)[:count]}
    return least | {c.id for c in candidates if c.awaited}


def _last_verified(sound: Sequence[Candidate], kept: set[str]) -> set[str]:
    """Return a set with the newest verified checkpoint; empty if `kept` has a verified one."""
    verified = [candidate.id for candidate in sound if candidate.verified]
    return set() if kept.intersection(verified) else set(verified[-1:])


def apply_retention(
    context: Context,
    connection: Connection,
    *,
    job_id: str,
    section: CheckpointSection,
    measure: Measure,
) -> None:
    """Queue the deletion of the checkpoints that a job's retention settings no longer keep.

    The caller holds the job's lock and has stored its newest commit.
    """
    if section.keep_latest_k == 0:
        return
    lineage = lineage_of(attempts_of(connection, job_id))
    table = checkpoints.c
    staying = (table.job_id == job_id, table.deleting_since.is_(None))
    rows = CheckpointHead.all(connection, CheckpointHead.select().where(*staying))
    held = {row.id: row for row in rows if lineage.holds(number=row.attempt, step=row.step)}
    needed = protected(connection, held.keys())
    metric = section.keep_best_metric if section.keep_best_k else None
    steps = {row.step for row in held.values()}
    measured = measure(connection, lineage, metric, steps) if metric else Measured()
    candidates = [
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
    ]
    going = deletable(section, candidates)
    if not going:
        return
    job = JobHead.one(connection, JobHead.select().where(jobs.c.id == job_id))
    reason = f"keep_latest_k={section.keep_latest_k}"
    if section.keep_every_steps:
        reason += f", keep_every_steps={section.keep_every_steps}"
    if metric:
        reason += f", keep_best_k={section.keep_best_k} by {metric}"
    for candidate in going:
        row = held[candidate.id]
        _remove(context, connection, job=job, checkpoint=row, actor=RETENTION, reason=reason)


def delete(context: Context, checkpoint_id: str, *, actor: Actor) -> str:
    """Mark a checkpoint as being deleted, queue the deletion, and return the operation's id.

    A repeated call returns the id of the open operation, or queues another operation if the last
    operation failed.

    Raises:
        NotFoundError: no checkpoint has this id.
        ConflictError: a guard forbids the deletion; the message names the guard.
    """
    with write_as(context, actor) as connection:
        job, checkpoint = lock_checkpoint(
            connection, checkpoint_id, scope=actor.scope, permission=Permission.JOBS_DELETE
        )
        if checkpoint.deleting_since is None:
            reason = violated_guard(connection, job, checkpoint, scope=actor.scope)
            if reason is not None:
                raise ConflictError(reason)
        return _remove(context, connection, job=job, checkpoint=checkpoint, actor=actor, reason="")


def remove_with_job(
    context: Context, connection: Connection, job: JobHead, *, actor: Actor
) -> list[str]:
    """Queue the deletion of all checkpoints of a job, and return the operations' ids.

    Raises:
        ConflictError: a checkpoint is pinned, or an operation uses a checkpoint.
    """
    mine = CheckpointHead.select().where(checkpoints.c.job_id == job.id)
    rows = CheckpointHead.all(connection, mine)
    pinned = sorted(row.id for row in rows if row.pinned_at is not None)
    if pinned:
        raise ConflictError(f"{', '.join(pinned[:5])} is pinned; unpin it first")
    for operation in operations_on(connection, [row.id for row in rows]).values():
        raise ConflictError(in_use(operation))
    cancel_looks(context, connection, operations.c.job_id == job.id, actor=actor)
    kind, reason, queued = OperationKind.DELETE, f"{job.name} was deleted", []
    for root in sorted({row.root for row in rows}):
        paths = tuple(sorted(row.path for row in rows if row.root == root))
        task = OperationTask(kind=kind, job_id=job.id, root=root, paths=paths, whole_job=True)
        queued.append(
            queue_operation(context, connection, task, job=job, actor=actor, reason=reason)
        )
    return queued


def _remove(
    context: Context,
    connection: Connection,
    *,
    job: JobHead,
    checkpoint: CheckpointHead,
    actor: Actor,
    reason: str,
) -> str:
    # One transaction writes mark and operation, so a mark without an operation cannot exist. From
    # here on no placement, fork, export or sample takes the checkpoint.
    identifier, root, paths = checkpoint.id, checkpoint.root, (checkpoint.path,)
    unmarked = (checkpoints.c.id == identifier) & checkpoints.c.deleting_since.is_(None)
    connection.execute(update(checkpoints).where(unmarked).values(deleting_since=context.now()))
    cancel_looks(context, connection, operations.c.checkpoint_id == identifier, actor=actor)
    task = OperationTask(kind=OperationKind.DELETE, job_id=job.id, root=root, paths=paths)
    return queue_operation(
        context, connection, task, job=job, actor=actor, reason=reason, checkpoint_id=identifier
    )
