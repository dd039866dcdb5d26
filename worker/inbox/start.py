"""Handles one message: claims a share or an operation, and starts its supervisor."""

from __future__ import annotations

import logging

from trainyard.protocol.worker_messages import LaunchMessage, OperationMessage
from worker.api import ServerAway, WorkerApi
from worker.launch import launch_attempt
from worker.node.node_store import LocalNode
from worker.operations import start_operation
from worker.registration import own_token
from worker.settings import Settings

logger = logging.getLogger(__name__)

Message = LaunchMessage | OperationMessage


def start(message: Message, settings: Settings, node: LocalNode) -> bool:
    """Claim a message's share or operation and start its supervisor; return whether it was started.

    An unreachable server grants no claim, but sends the message again later.

    Raises:
        ValueError, OSError, SubprocessError: the claimed work cannot be started on this node.
        ApiError: the server refuses a report that the launch must be placed again.
    """
    token = own_token(node.store)
    with WorkerApi(settings.url, token, ca_file=settings.ca_file) as api:
        try:
            if isinstance(message, LaunchMessage):
                return launch_attempt(node, message, api)
            return start_operation(node, message, api)
        except ServerAway as error:
            logger.warning("%r is not claimed: %s", message, error)
            return False
