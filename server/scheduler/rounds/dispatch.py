"""Messages to the queues of nodes and provisioners: ids only, sent by a pool of threads."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Protocol

from celery import Celery

from server.core.context import Clock
from trainyard.protocol.node_sources.messages import SourceMessage
from trainyard.protocol.worker_messages import LaunchMessage, OperationMessage

logger = logging.getLogger(__name__)

Message = LaunchMessage | OperationMessage | SourceMessage

TASKS: dict[type[Message], str] = {
    LaunchMessage: "worker.launch",
    OperationMessage: "worker.operation",
    SourceMessage: "provisioner.call",
}
EXPIRES_SECONDS = 60
"""Life of a message in the broker. The reconciler repeats messages for unclaimed launches; a node
that was away must not find hours of repeats."""
THREADS = 8
"""Messages sent in parallel; below the limit of Celery's pool of connections (10)."""
SLOW = timedelta(seconds=10)
"""If a message is not sent within this time, the broker does not accept messages."""


class Dispatcher(Protocol):
    """Accepts messages for nodes, and never waits for the broker."""

    def send(self, message: Message) -> None:
        """Accept one message; it may be lost or duplicated."""

    @property
    def up_since(self) -> datetime | None:
        """Start of the period in which the broker accepts every message; None outside one."""


class Sender(Protocol):
    """Sends messages, and may block while it does."""

    def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            Exception: the broker does not answer.
        """


class Outbox:
    """Sends in parallel, and records whether the broker accepts messages.

    A waiting message is not queued again: during an outage of the broker, the queue holds one
    message for each waiting launch and operation.
    """

    def __init__(self, sender: Sender, clock: Clock) -> None:
        self._sender = sender
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="send")
        self._lock = threading.Lock()
        self._waiting: dict[Message, datetime] = {}  # in the order in which they came
        self._up_since: datetime | None = None

    def send(self, message: Message) -> None:
        """Queue one message; a free thread sends it."""
        with self._lock:
            if message in self._waiting:
                return
            self._waiting[message] = self._clock.now()
        self._threads.submit(self._send, message)

    @property
    def up_since(self) -> datetime | None:
        """Start of the period in which the broker accepts every message; None outside one."""
        with self._lock:
            oldest = next(iter(self._waiting.values()), None)
            if oldest is not None and self._clock.now() - oldest > SLOW:
                self._up_since = None
            return self._up_since

    @property
    def waiting(self) -> int:
        """Messages that are not sent yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Drop waiting messages; the exit of the interpreter waits for those being sent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, message: Message) -> None:
        error: Exception | None = None
        try:
            self._sender.send(message)
        except Exception as raised:  # noqa: BLE001 - after any error it is sent again
            error = raised
        with self._lock:
            del self._waiting[message]
            was_up = self._up_since is not None
            if error is not None:
                self._up_since = None
            elif not was_up:
                self._up_since = self._clock.now()
        if error is not None:
            level = logging.WARNING if was_up else logging.INFO
            logger.log(level, "the broker did not take %s: %s", message, error, exc_info=was_up)
        elif not was_up:
            logger.info("the broker accepts messages")


class CelerySender:
    """Sends through the Celery broker, without a retry: the reconciler repeats messages."""

    def __init__(self, broker_url: str) -> None:
        self.app = Celery("trainyard", broker=broker_url)
        self.app.conf.update(
            task_ignore_result=True,
            broker_connection_timeout=2,
            broker_transport_options={"socket_connect_timeout": 2, "socket_timeout": 5},
        )
        # Created before any thread sends: two threads that start at once would create two pools.
        _ = self.app.producer_pool

    def send(self, message: Message) -> None:
        """Send one message."""
        self.app.send_task(
            TASKS[type(message)],
            kwargs=message.model_dump(),
            queue=_queue(message),
            expires=EXPIRES_SECONDS,
            retry=False,
            ignore_result=True,
        )

    def close(self) -> None:
        """Close the connections to the broker."""
        self.app.close()


def _queue(message: Message) -> str:
    if isinstance(message, SourceMessage):
        return f"source.{message.source}"
    return f"node.{message.node}"
