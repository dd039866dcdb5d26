"""Messages in the words of the former protocol, for nodes whose worker was not upgraded yet."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, select

from server.database.tables import nodes
from trainyard.protocol.former import FormerOperationMessage
from trainyard.protocol.worker_messages import PROTOCOL, OperationMessage


def former_nodes(connection: Connection) -> frozenset[str]:
    """Return the nodes that registered with the former protocol."""
    return frozenset(connection.scalars(select(nodes.c.name).where(nodes.c.protocol < PROTOCOL)))


def operation_message(
    operation_id: str, node: str, *, former: Collection[str]
) -> OperationMessage | FormerOperationMessage:
    """Return the message of an operation that the worker of a node understands."""
    if node in former:
        return FormerOperationMessage(chore_id=operation_id, node=node)
    return OperationMessage(operation_id=operation_id, node=node)
