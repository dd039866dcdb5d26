"""Messages to the queues of nodes and provisioners, with ids only, sent by a thread pool."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
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
"""Lifetime of a message in the broker, in seconds. The reconciler repeats messages for unclaimed
launches. Without the limit, a node that was unreachable for hours would receive all the repeats."""
THREADS = 8
"""Number of messages sent in parallel, below the limit of Celery's connection pool (10)."""
SLOW = timedelta(seconds=10)
"""A message that is unsent for longer than this time shows that the broker accepts no messages."""


class Dispatcher(Protocol):
    """Accepts messages for nodes without waiting for the broker."""

    def send(self, message: Message) -> None:
        """Accept one message, which may later be lost or duplicated."""

    @property
    def up_since(self) -> datetime | None:
        """Time since which the broker has accepted each message; None in an outage and at first."""


class Outbox:
    """Sends messages in parallel, and records whether the broker accepts them.

    A message that already waits is not queued again. So during an outage of the broker, the queue
    holds at most one message per launch, operation and call.
    """

    def __init__(self, send: Callable[[Message], None], clock: Clock) -> None:
        """Take the function that sends one message; it may block, and raises if the send fails."""
        self._send_one = send
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="send")
        self._lock = threading.Lock()
        self._waiting: dict[Message, datetime] = {}  # in order of arrival
        self._up_since: datetime | None = None

    def send(self, message: Message) -> None:
        """Queue one message unless an equal one waits; a free thread sends it."""
        with self._lock:
            if message in self._waiting:
                return
            self._waiting[message] = self._clock.now()
        self._threads.submit(self._send, message)

    @property
    def up_since(self) -> datetime | None:
        """Time since which the broker has accepted each message; None in an outage and at first."""
        with self._lock:
            oldest = next(iter(self._waiting.values()), None)
            if oldest is not None and self._clock.now() - oldest > SLOW:
                self._up_since = None
            return self._up_since

    def close(self) -> None:
        """Drop waiting messages; the interpreter's exit waits for messages that are being sent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, message: Message) -> None:
        error: Exception | None = None
        try:
            self._send_one(message)
        except Exception as raised:  # noqa: BLE001 - the message is sent again
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
            shown = error if was_up else None
            logger.log(level, "the broker did not take %s: %s", message, error, exc_info=shown)
        elif not was_up:
            logger.info("the broker accepts messages")


class CelerySender:
    """Sends through the Celery broker without retries, because the reconciler repeats messages."""

    def __init__(self, broker_url: str) -> None:
        self.app = Celery("trainyard", broker=broker_url)
        self.app.conf.update(
            task_ignore_result=True,
            broker_connection_timeout=2,
            broker_transport_options={"socket_connect_timeout": 2, "socket_timeout": 5},
        )
        # The pool is created before any thread sends, because two threads that start together would
        # create two pools.
        _ = self.app.producer_pool

    def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            Exception: the broker did not accept the message.
        """
        if isinstance(message, SourceMessage):
            queue = f"source.{message.source}"
        else:
            queue = f"node.{message.node}"
        self.app.send_task(
            TASKS[type(message)],
            kwargs=message.model_dump(),
            queue=queue,
            expires=EXPIRES_SECONDS,
            retry=False,
        )

    def close(self) -> None:
        """Close the connections to the broker."""
        self.app.close()
