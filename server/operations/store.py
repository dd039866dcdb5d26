"""Store of operations: queue, list, read, cancel and end them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert

from server.context import Context
from server.database.rows import JobHead, Operation
from server.database.tables import operations
from server.errors import NotFoundError
from server.events.store import append_event
from server.lifecycle import move, operation_to
from server.subject import Actor, Subject
from trainyard.protocol.operations import LOOKS, OperationKind, OperationTask
from trainyard.protocol.rest.event_data import OperationEnded, OperationQueued
from trainyard.protocol.rest.operations import OperationView
from trainyard.protocol.states import OPEN_OPERATION_STATES, OperationState


def queue_operation(
    context: Context,
    connection: Connection,
    task: OperationTask,
    *,
    job: JobHead,
    checkpoint_id: str | None,
    actor: Actor,
    reason: str,
) -> str:
    """Store an operation and return its id, or that of the open one that does the same.

    Args:
        context: the server's surroundings.
        connection: a transaction that holds the job's lock.
        task: what a node is to do.
        job: the job.
        checkpoint_id: the checkpoint; None for all of the job.
        actor: who requests it.
        reason: why.
    """
    if checkpoint_id is not None and (open_one := _same_one(connection, checkpoint_id, task)):
        return open_one
    operation_id = context.new_id()
    row = {
        "id": operation_id,
        "kind": task.kind.value,
        "state": OperationState.QUEUED.value,
        "job_id": job.id,
        "job_name": job.name,
        "checkpoint_id": checkpoint_id,
        "actor": actor.name,
        "reason": reason,
        "task": task,
        "storage": job.storage,
        "fence": 0,
        "created_at": context.now(),
    }
    connection.execute(insert(operations).values(row))
    append_event(
        context,
        connection,
        OperationQueued(**identity(operation_id, task.kind, checkpoint_id), reason=reason),
        message=describe(task.kind, checkpoint_id) + (reason and f": {reason}"),
        actor=actor,
        subject=Subject(job.id),
    )
    return operation_id


def describe(kind: str, checkpoint_id: str | None) -> str:
    """Return what an operation does, as its events describe it."""
    return f"{kind} {checkpoint_id or 'all checkpoints'}"


def identity(operation_id: str, kind: str, checkpoint_id: str | None) -> dict[str, Any]:
    """Return the part of an event's data that identifies the operation."""
    return {"operation_id": operation_id, "kind": kind, "checkpoint_id": checkpoint_id}


def open_operations(
    connection: Connection, kinds: Collection[OperationKind], *where: ColumnElement[bool]
) -> Sequence[Operation]:
    """Return the operations of some kinds that have not ended, the oldest first."""
    found = Operation.select().where(
        operations.c.kind.in_(sorted(kinds)),
        operations.c.state.in_(sorted(OPEN_OPERATION_STATES)),
        *where,
    )
    return Operation.all(connection, found.order_by(operations.c.id))


def _same_one(connection: Connection, checkpoint_id: str, task: OperationTask) -> str | None:
    """Return the id of the open operation that does the same with a checkpoint."""
    found = open_operations(connection, {task.kind}, operations.c.checkpoint_id == checkpoint_id)
    return next((row.id for row in found if row.task == task), None)


def cancel_looks(
    context: Context,
    connection: Connection,
    *,
    job_id: str,
    checkpoint_id: str | None,
    actor: Actor,
) -> None:
    """Cancel the open verifications of a checkpoint, or of all of a job, before a deletion."""
    where = [operations.c.job_id == job_id]
    if checkpoint_id is not None:
        where.append(operations.c.checkpoint_id == checkpoint_id)
    for operation in open_operations(connection, LOOKS, *where):
        end_operation(
            context,
            connection,
            operation,
            OperationState.CANCELLED,
            message="the checkpoint is to be deleted",
            actor=actor,
        )


def end_operation(
    context: Context,
    connection: Connection,
    operation: Operation,
    state: OperationState,
    *,
    message: str,
    actor: Actor,
    ok: bool | None = None,
    **values: Any,
) -> None:
    """Move an operation to an end, with its event; `ok` is the result of a verification.

    Raises:
        IllegalMoveError: it has ended already.
    """
    move(
        context,
        connection,
        operation_to(operation.id, state, ended_at=context.now(), **values),
        event=OperationEnded(
            **identity(operation.id, operation.kind, operation.checkpoint_id), state=state, ok=ok
        ),
        message=f"{describe(operation.kind, operation.checkpoint_id)} {state}: {message}",
        actor=actor,
        subject=Subject(operation.job_id, node=operation.node),
    )


def read_operation(connection: Connection, operation_id: str) -> OperationView:
    """Return one operation.

    Raises:
        NotFoundError: nothing has this id.
    """
    row = Operation.one_or_none(
        connection, Operation.select().where(operations.c.id == operation_id)
    )
    if row is None:
        raise NotFoundError(f"no operation has the id {operation_id!r}")
    return operation_view(row)


def list_operations(
    connection: Connection,
    *,
    job_id: str | None,
    checkpoint_id: str | None,
    open_only: bool,
    before: str | None,
    limit: int,
) -> list[OperationView]:
    """Return at most `limit` operations before an id, the newest first."""
    query = Operation.select().order_by(operations.c.id.desc()).limit(limit)
    if job_id is not None:
        query = query.where(operations.c.job_id == job_id)
    if checkpoint_id is not None:
        query = query.where(operations.c.checkpoint_id == checkpoint_id)
    if open_only:
        query = query.where(operations.c.state.in_(sorted(OPEN_OPERATION_STATES)))
    if before is not None:
        query = query.where(operations.c.id < before)
    return [operation_view(row) for row in Operation.all(connection, query)]


def operation_view(row: Operation) -> OperationView:
    """Return the view of an operation's row."""
    return OperationView(
        id=row.id,
        kind=row.kind,
        state=row.state,
        job_id=row.job_id,
        job_name=row.job_name,
        checkpoint_id=row.checkpoint_id,
        actor=row.actor,
        reason=row.reason,
        waiting=row.waiting if row.state == OperationState.QUEUED else None,
        node=row.node,
        tries=row.fence,
        progress=row.progress,
        outcome=row.outcome,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
