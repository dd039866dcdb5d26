"""Messages to nodes: ids only, sent to the queue of one node."""

from __future__ import annotations

from typing import Protocol

from celery import Celery

from specs.reports import ChoreMessage, LaunchMessage

Message = LaunchMessage | ChoreMessage

TASKS: dict[type[Message], str] = {LaunchMessage: "worker.launch", ChoreMessage: "worker.chore"}
EXPIRES_SECONDS = 60


class Dispatcher(Protocol):
    """Sends messages to nodes."""

    def send(self, message: Message) -> None:
        """Send one message; it may be lost or doubled.

        Raises:
            Exception: the broker does not answer.
        """


class CeleryDispatcher:
    """Sends through the Celery broker; a broker that is away is no reason to wait."""

    def __init__(self, broker_url: str) -> None:
        self.app = Celery("trainyard", broker=broker_url)
        self.app.conf.update(
            task_ignore_result=True,
            broker_connection_timeout=2,
            broker_transport_options={"socket_connect_timeout": 2, "socket_timeout": 5},
        )

    def send(self, message: Message) -> None:
        """Send one message, without trying again."""
        self.app.send_task(
            TASKS[type(message)],
            kwargs=message.model_dump(),
            queue=f"node.{message.node}",
            expires=EXPIRES_SECONDS,
            retry=False,
            ignore_result=True,
        )

    def close(self) -> None:
        """Close the connections to the broker."""
        self.app.close()


class RecordingDispatcher:
    """Keeps the messages, for tests; a broker that is away can be played."""

    def __init__(self) -> None:
        self.sent: list[LaunchMessage] = []
        self.chores: list[ChoreMessage] = []
        self.away = False

    def send(self, message: Message) -> None:
        """Keep one message.

        Raises:
            ConnectionError: the broker is away.
        """
        if self.away:
            raise ConnectionError("the broker is away")
        if isinstance(message, ChoreMessage):
            self.chores.append(message)
        else:
            self.sent.append(message)
