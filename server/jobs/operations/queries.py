"""Reads of open operations, and of views for the API."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, case, select

from server.core.database.rows import Operation
from server.core.database.tables import operations
from server.core.errors import NotFoundError
from server.core.visibility.scope import Scope
from trainyard.protocol.operations import OperationKind
from trainyard.protocol.rest.checkpoints import OperationView
from trainyard.protocol.states import OPEN_OPERATION_STATES, OperationState

ARE_OPEN = operations.c.state.in_(sorted(OPEN_OPERATION_STATES))
"""SQL condition that an operation has not ended."""

_FIELDS = OperationView.model_fields
_waits = operations.c.state == OperationState.QUEUED
_COMPUTED = {
    "tries": operations.c.fence.label("tries"),
    "failing": case((ARE_OPEN, operations.c.failing)).label("failing"),
    "waiting": case((_waits, operations.c.waiting)).label("waiting"),
}
# The task is left out, so that an operation with an unreadable task still has a view.
_VIEW = select(*(_COMPUTED[n] if n in _COMPUTED else operations.c[n] for n in _FIELDS))


def open_operations(
    connection: Connection, kinds: Collection[OperationKind], *where: ColumnElement[bool]
) -> Sequence[Operation]:
    """Return the open operations of the given kinds, oldest first."""
    found = Operation.select().where(operations.c.kind.in_(sorted(kinds)), ARE_OPEN, *where)
    return Operation.all(connection, found.order_by(operations.c.id))


def read_operation(connection: Connection, operation_id: str, *, scope: Scope) -> OperationView:
    """Return the view of one operation.

    Raises:
        NotFoundError: no operation has this id.
    """
    its = operations.c.id == operation_id, scope.filter(operations.c.project)
    row = connection.execute(_VIEW.where(*its)).one_or_none()
    if row is None:
        raise no_operation(operation_id)
    return OperationView(**row._mapping)


def no_operation(operation_id: str) -> NotFoundError:
    """Return the error for an unknown or hidden operation."""
    return NotFoundError(f"no operation has the id {operation_id!r}")


def list_operations(
    connection: Connection, *where: ColumnElement[bool], scope: Scope, limit: int
) -> list[OperationView]:
    """Return the views of at most `limit` operations, newest first."""
    query = (
        _VIEW.where(*where, scope.filter(operations.c.project))
        .order_by(operations.c.id.desc())
        .limit(limit)
    )
    return [OperationView(**row._mapping) for row in connection.execute(query)]
