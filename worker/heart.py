"""Says again and again that the node lives, which attempts it sees to, and which are gone."""

from __future__ import annotations

import logging
import threading

from specs.reports import PROTOCOL, NodeHeartbeat
from worker.adopt import adopt, prove_gone
from worker.api import ApiError, WorkerApi
from worker.node import Node

logger = logging.getLogger(__name__)


class Heart(threading.Thread):
    """The heartbeats of a worker; it needs neither broker nor Celery to beat."""

    def __init__(self, node: Node, api: WorkerApi, *, name: str, seconds: float) -> None:
        super().__init__(name="heart", daemon=True)
        self._node = node
        self._api = api
        self._node_name = name
        self._seconds = seconds
        self._stopping = threading.Event()
        self._answered = True

    def run(self) -> None:
        """Beat until `stop`."""
        while not self._stopping.wait(self._seconds):
            self.beat()

    def stop(self) -> None:
        """Beat no more."""
        self._stopping.set()

    def beat(self) -> None:
        """Beat once; what fails is tried again at the next one."""
        try:
            expected = self._say(gone=())
            if gone := prove_gone(self._node, expected, name=self._node_name):
                self._say(gone=gone)
            self._note(None)
        except ApiError as error:
            self._note(error)
        except Exception:
            logger.exception("a heartbeat failed")

    def _say(self, *, gone: tuple[str, ...]) -> tuple[str, ...]:
        heartbeat = NodeHeartbeat(
            protocol=PROTOCOL,
            node=self._node_name,
            supervised=adopt(self._node),
            gone=gone,
        )
        return self._api.heartbeat(heartbeat).expected

    def _note(self, error: ApiError | None) -> None:
        """Log when the server goes and when it comes back, not each time in between."""
        answered = error is None
        if answered != self._answered:
            logger.warning("the server answers again" if answered else f"no heartbeat: {error}")
        self._answered = answered
