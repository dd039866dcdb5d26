"""Cancels operations, and deletes operations that ended long ago."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, delete, exists, select, update

from server.api.auth.endings import write_as
from server.core.context import Context
from server.core.database.rows import OperationHead
from server.core.database.tables import checkpoints, operations
from server.core.errors import ConflictError
from server.core.subject import Actor
from server.core.visibility.scope import Scope
from server.jobs.operations.queries import ARE_OPEN, no_operation
from server.jobs.operations.service import end_operation, lock_operation
from trainyard.protocol.operations import OperationKind
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.states import OPEN_OPERATION_STATES, OperationState

PRUNED_AT_ONCE = 1000


def cancel(context: Context, operation_id: str, *, actor: Actor) -> None:
    """Cancel an operation; if it runs, the reply to its next report has the order to end.

    A deletion can be cancelled until a node has claimed it. After the cancellation, the checkpoint
    is usable again.

    Raises:
        NotFoundError: there is no such operation.
        ConflictError: the operation has ended, it deletes the checkpoints of a deleted job, or
            files may already be deleted.
    """
    with write_as(context, actor) as connection:
        _check(connection, operation_id, scope=actor.scope)
        operation = lock_operation(connection, operation_id)
        if operation.state not in OPEN_OPERATION_STATES:
            raise ConflictError(f"operation {operation_id} has already ended: {operation.state}")
        if operation.kind == OperationKind.DELETE:
            _take_back_deletion(connection, operation)
        state, message = OperationState.CANCELLED, f"taken back by {actor.name}"
        end_operation(
            context, connection, operation=operation, state=state, message=message, actor=actor
        )


def _check(connection: Connection, operation_id: str, *, scope: Scope) -> None:
    """Check the project of an operation, which never changes, before anything is locked.

    Raises:
        NotFoundError: there is no such operation, or the caller does not see its job.
        ForbiddenError: the caller sees the job, and lacks `jobs:write`.
    """
    query = select(operations.c.id, operations.c.project).where(operations.c.id == operation_id)
    row = connection.execute(query).one_or_none()
    missing = no_operation(operation_id)
    if row is None:
        raise missing
    scope.check(row.project, Permission.JOBS_WRITE, missing=missing)


def prune_ended(context: Context) -> int:
    """Delete operations that ended long ago, at most `PRUNED_AT_ONCE`; return their number.

    An operation on a checkpoint is kept as evidence while the checkpoint is being deleted, because
    the deletion may have failed. An automatic export is kept as long as its checkpoint: the
    operation is the catalog's record of the export.
    """
    if not context.settings.operations_kept_days:
        return 0
    limit = context.now() - timedelta(days=context.settings.operations_kept_days)
    being_deleted = exists().where(
        checkpoints.c.id == operations.c.checkpoint_id, checkpoints.c.deleting_since.is_not(None)
    )
    exported = exists().where(
        checkpoints.c.id == operations.c.checkpoint_id,
        operations.c.kind == OperationKind.AUTO_EXPORT,
    )
    needed = being_deleted | exported
    ended = select(operations.c.id).where(~ARE_OPEN, operations.c.ended_at < limit, ~needed)
    old = ended.order_by(operations.c.id).limit(PRUNED_AT_ONCE)
    with context.database.write() as connection:
        return connection.execute(delete(operations).where(operations.c.id.in_(old))).rowcount


def _take_back_deletion(connection: Connection, operation: OperationHead) -> None:
    if operation.checkpoint_id is None:
        raise ConflictError(
            f"{operation.job_name} is no longer in the catalog: without this operation its "
            "checkpoints would stay on storage, unknown to the server"
        )
    begun = exists().where(
        operations.c.checkpoint_id == operation.checkpoint_id,
        operations.c.kind == OperationKind.DELETE,
        operations.c.fence > 0,  # also true for an earlier, failed operation
    )
    if connection.scalar(select(begun)):
        raise ConflictError(
            f"a node has begun to delete {operation.checkpoint_id}: a partly deleted checkpoint is "
            "unusable"
        )
    mine = update(checkpoints).where(checkpoints.c.id == operation.checkpoint_id)
    connection.execute(mine.values(deleting_since=None))
