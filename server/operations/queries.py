"""Reads operations: those that are open, and the views of the API."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection

from server.database.rows import Operation
from server.database.tables import operations
from server.errors import NotFoundError
from trainyard.protocol.operations import OperationKind
from trainyard.protocol.rest.operations import OperationView
from trainyard.protocol.states import OPEN_OPERATION_STATES, OperationState


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
