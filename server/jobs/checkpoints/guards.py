"""Guards against the deletion of a checkpoint (docs/lifecycle-operations.md, 38)."""

from __future__ import annotations

from collections.abc import Collection

import orjson
from sqlalchemy import Connection, Text, exists, func, or_, select, type_coerce

from server.core.database.rows import Checkpoint, CheckpointHead, JobHead, Operation
from server.core.database.tables import attempts, checkpoints, jobs, operations
from server.core.errors import ConflictError, NotFoundError
from server.core.lifecycle import lock_job
from server.core.visibility.scope import HIDDEN_JOB, Scope
from server.jobs.operations.queries import open_operations
from trainyard.protocol.operations import USES, OperationKind
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.states import LIVE_ATTEMPT_STATES, TERMINAL_JOB_STATES, JobState
from trainyard.run.checkpoints.checkpoint_names import split_checkpoint_id

_ENDED = sorted(TERMINAL_JOB_STATES)


def lock_checkpoint(
    connection: Connection, checkpoint_id: str, *, scope: Scope, permission: Permission
) -> tuple[JobHead, Checkpoint]:
    """Lock the job of a checkpoint on which the caller has a permission; return both rows.

    Raises:
        NotFoundError: no checkpoint has this id, or the caller does not see its job.
        ForbiddenError: the caller sees the job, and lacks the permission.
    """
    found, missing = checkpoints.c.id == checkpoint_id, no_checkpoint(checkpoint_id)
    query = select(jobs.c.id, jobs.c.project).join(checkpoints, checkpoints.c.job_id == jobs.c.id)
    of_job = connection.execute(query.where(found)).one_or_none()
    if of_job is not None:
        job_id, project = of_job
        scope.check(project, permission, missing=missing)
        lock_job(connection, job_id)
        # The checkpoint is read again under the lock, because it may have been deleted.
        row = Checkpoint.one_or_none(connection, Checkpoint.select().where(found))
        if row is not None:
            return JobHead.one(connection, JobHead.select().where(jobs.c.id == job_id)), row
    raise missing


def no_checkpoint(checkpoint_id: str) -> NotFoundError:
    """Return the error for an unknown or hidden checkpoint."""
    return NotFoundError(f"no checkpoint has the id {checkpoint_id!r}")


def locked_to_stay(
    connection: Connection,
    checkpoint_id: str,
    *,
    scope: Scope,
    permission: Permission = Permission.JOBS_WRITE,
) -> tuple[JobHead, Checkpoint]:
    """Lock the job of a checkpoint on which the caller has a permission; return both rows.

    Raises:
        NotFoundError: no checkpoint has this id, or the caller does not see its job.
        ForbiddenError: the caller sees the job, and lacks the permission.
        ConflictError: the checkpoint is being deleted.
    """
    job, checkpoint = lock_checkpoint(connection, checkpoint_id, scope=scope, permission=permission)
    if checkpoint.deleting_since is not None:
        raise ConflictError(f"{checkpoint_id} is being deleted")
    return job, checkpoint


def violated_guard(
    connection: Connection, job: JobHead, checkpoint: CheckpointHead, *, scope: Scope
) -> str | None:
    """Return the reason why a person may not delete a checkpoint; None if no guard forbids it.

    The caller holds the job's lock until it has marked the checkpoint. Placement takes the same
    lock, so no attempt can start to load the checkpoint between the check and the mark.
    """
    identifier = checkpoint.id
    if checkpoint.pinned_at is not None:
        return f"{identifier} was pinned by {checkpoint.pinned_by}; unpin it first"
    if _being_loaded(connection, {identifier}):
        return f"{identifier} is being loaded by an attempt; wait for its first step"
    if use := operations_on(connection, {identifier}).get(identifier):
        return in_use(use)
    if fork := _needed_by(connection, {identifier}, scope=scope):
        return fork
    if job.state == JobState.SUCCEEDED or checkpoint.verified is False:
        return None
    table = checkpoints.c
    others = select(func.count(), func.count().filter(table.verified)).where(
        table.job_id == job.id,
        table.id != identifier,
        table.deleting_since.is_(None),
        table.verified.is_not(False),
    )
    total, verified = connection.execute(others).one()
    if total == 0:
        return (
            f"{identifier} is the last checkpoint of {job.name}, which is {job.state}; "
            "delete the job with its checkpoints instead"
        )
    if checkpoint.verified and verified == 0:
        return f"{identifier} is the only verified checkpoint of {job.name}; verify another first"
    return None


def protected(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return the ids of checkpoints that are being loaded, in use by an operation, or forked.

    Only forks that have not ended count, also hidden ones, because each may load its origin again.
    Retention does not interrupt an automatic export that has begun, because exports that take
    longer than a checkpoint is kept would never end. A person's deletion does interrupt it.
    """
    live = jobs.c.forked_from.in_(ids), jobs.c.state.not_in(_ENDED)
    forks = connection.scalars(select(jobs.c.forked_from).where(*live))
    loaded, used = _being_loaded(connection, ids), operations_on(connection, ids)
    mine = operations.c.checkpoint_id.in_(ids)
    begun = operations.c.fence > 0  # also one that gave way, or failed and is tried again
    exports = open_operations(connection, {OperationKind.AUTO_EXPORT}, mine, begun)
    written = {str(row.checkpoint_id) for row in exports}
    return {*loaded, *used, *written, *map(str, forks)}


def operations_on(connection: Connection, ids: Collection[str]) -> dict[str, Operation]:
    """Return for each checkpoint id an open export or sample; ids without either are omitted."""
    found = open_operations(connection, USES, operations.c.checkpoint_id.in_(ids))
    return {row.checkpoint_id: row for row in found if row.checkpoint_id is not None}


def in_use(operation: Operation) -> str:
    """Return the reason why an open operation forbids the deletion of its checkpoint."""
    return (
        f"{operation.checkpoint_id}: operation {operation.id} ({operation.kind}, requested by "
        f"{operation.actor}) is {operation.state}; wait for its end, or cancel it"
    )


def refuse_while_needed(connection: Connection, job_id: str, *, scope: Scope) -> None:
    """Refuse to delete a job while a fork without own checkpoints depends on the job's checkpoints.

    Raises:
        ConflictError: a fork of the job has saved no checkpoint so far.
    """
    ids = connection.scalars(select(checkpoints.c.id).where(checkpoints.c.job_id == job_id)).all()
    if fork := _needed_by(connection, ids, scope=scope):
        raise ConflictError(fork)


def _being_loaded(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return ids of checkpoints that a live attempt may still load or that a pending launch names.

    An attempt that has taken a step has finished the load of its checkpoint.
    """
    loading = select(attempts.c.parent_checkpoint_id).where(
        attempts.c.parent_checkpoint_id.in_(ids),
        attempts.c.state.in_(sorted(LIVE_ATTEMPT_STATES)),
        attempts.c.last_step <= attempts.c.start_step,
    )
    found = set(map(str, connection.scalars(loading)))
    # A launch names a checkpoint of its own job, or the origin of its fork.
    owners = {split_checkpoint_id(identifier)[0] for identifier in ids}
    # Only one field is read, because an unreadable launch must not block commits of other jobs.
    launches = select(type_coerce(jobs.c.pending, Text)).where(
        jobs.c.pending.is_not(None), or_(jobs.c.id.in_(owners), jobs.c.forked_from.in_(ids))
    )
    named = (orjson.loads(launch).get("checkpoint_id") for launch in connection.scalars(launches))
    return found | {identifier for identifier in named if identifier in ids}


def _needed_by(connection: Connection, ids: Collection[str], *, scope: Scope) -> str | None:
    """Return the reason why a fork still needs one of the checkpoints; None without such a fork.

    A fork that has ended needs none: otherwise a fork in a project that the caller does not see
    would forbid the deletion for ever. A hidden fork is not named.
    """
    saved = exists().where(checkpoints.c.job_id == jobs.c.id)
    query = select(jobs.c.name, jobs.c.forked_from, jobs.c.project).where(
        jobs.c.state.not_in(_ENDED), jobs.c.forked_from.in_(ids), ~saved
    )
    for name, origin, project in connection.execute(query.limit(1)):
        named = name if scope.sees(project) else HIDDEN_JOB
        return f"{named} was forked from {origin} and has saved no checkpoint yet"
    return None
