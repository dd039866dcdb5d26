"""Messages that protocol 2 names otherwise; the server uses them for workers of that version.

What is an operation now was a chore. The bodies of its claims, reports and replies have the same
fields in both versions; the message to a worker and the paths differ.
"""

from __future__ import annotations

from trainyard.base.model_base import RecordModel
from trainyard.protocol.worker_messages import NodeName

TASK = "worker.chore"
"""Name of the Celery task that takes a `FormerOperationMessage`."""
PATH = "/chores/{operation_id}"
"""Path of the worker API, below `/workers`."""


class FormerOperationMessage(RecordModel):
    """The Celery message of an operation in the words of protocol 2."""

    chore_id: str
    """Id of the operation."""
    node: NodeName
    """Node that is to claim it."""
