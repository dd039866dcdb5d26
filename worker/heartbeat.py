"""Sends the node's heartbeats, which list attempts with a supervisor and attempts without one."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.protocol.rest.errors import ApiError, TrainyardError
from trainyard.protocol.worker_messages import PROTOCOL, ClockReading, NodeHeartbeat
from worker.adopt import adopt, prove_gone
from worker.api import ServerAway, WorkerApi
from worker.node.hardware.samples import Sampler
from worker.node.node_store import LocalNode
from worker.registration import ANOTHER_WORKER
from worker.run_as.account_answers import AccountAnswers
from worker.supervisor.preemption import read_deadline, read_notice, signal_supervisors

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""Interval, in seconds, between checks for a preemption notice. The machine may end only 30 s after
the notice.
"""


class Heart(threading.Thread):
    """The thread that sends heartbeats, independently of the broker and of Celery."""

    def __init__(
        self,
        node: LocalNode,
        api: WorkerApi,
        *,
        seconds: float,
        notices: Sequence[Path] = (),
        sampler: Sampler | None = None,
        ends_at: Callable[[], float | None] = lambda: None,
        notice_seconds: float | None = None,
        accounts: AccountAnswers | None = None,
    ) -> None:
        super().__init__(name="heart", daemon=True)
        self._node = node
        self._api = api
        self._seconds = seconds
        self._notices = notices
        self._sampler = sampler
        self._ends_at = ends_at
        self._notice_seconds = notice_seconds
        self._accounts = accounts
        self._sent_accounts: Mapping[str, int | str] = {}
        self._notice: str | None = None
        self._clock: ClockReading | None = None
        self._stopping = threading.Event()
        self._answered = True
        self.refusal: ApiError | None = None
        """Refusal of the server because another worker serves the node; heartbeats then end."""

    def run(self) -> None:
        """Send heartbeats until `stop`, and one immediately when something has changed.

        A notice may appear or be withdrawn, and answers about accounts may change.

        If another worker serves the node, this process sends SIGTERM to itself, because the other
        worker must get the node's messages.
        """
        due = time.monotonic() + self._seconds
        while not self._stopping.wait(min(self._seconds, POLL_SECONDS)):
            if self.refusal is not None:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if time.monotonic() >= due or self._has_news():
                self.beat()
                due = time.monotonic() + self._seconds

    def _has_news(self) -> bool:
        accounts = {} if self._accounts is None else self._accounts.found
        return read_notice(self._notices) != self._notice or accounts != self._sent_accounts

    def stop(self) -> None:
        """End the thread before its next heartbeat."""
        self._stopping.set()

    def beat(self) -> None:
        """Send one heartbeat; only log an error, because the next heartbeat repeats everything.
        While a notice exists, signal the supervisors first, because the signals need no server.
        """
        try:
            self._look_for_a_notice()
            expected = self._send(gone=())
            if gone := prove_gone(self._node.store, expected, name=self._node.name):
                self._send(gone=gone)
            self._note(None)
        except (ApiError, ServerAway) as error:
            if isinstance(error, ApiError) and error.status == ANOTHER_WORKER:
                self.refusal = error
            self._note(error)
        except Exception:
            logger.exception("a heartbeat failed")

    def _look_for_a_notice(self) -> None:
        notice = read_notice(self._notices)
        if notice != self._notice:
            logger.warning("notice that this node goes: %s", notice or "withdrawn")
            self._note_deadline()
        self._notice = notice
        if notice is not None:
            signal_supervisors(self._node.store)

    def _note_deadline(self) -> None:
        end, seconds = self._ends_at(), self._notice_seconds
        deadline = read_deadline(self._notices, usual_seconds=seconds, end=end)
        try:
            self._node.store.set_deadline(deadline)
        except OSError:  # even then, supervisors must leave
            logger.exception("the deadline of the notice could not be written")

    def _send(self, *, gone: tuple[str, ...]) -> tuple[str, ...]:
        heartbeat = NodeHeartbeat(
            protocol=PROTOCOL,
            node=self._node.name,
            supervised=adopt(self._node.store),
            gone=gone,
            notice=self._notice,
            sample=None if self._sampler is None else self._sampler.sample(),
            worker=self._node.worker,
            clock=self._clock,
            ends_at=self._ends_at(),
            accounts=None if self._accounts is None else dict(self._accounts.found),
        )
        if self._accounts is not None:  # also if it fails: a lost one is repeated when next due
            self._sent_accounts = heartbeat.accounts or {}
        sent_at, began = time.time(), time.monotonic()
        reply = self._api.heartbeat(heartbeat)
        half = (time.monotonic() - began) / 2  # monotonic: the clock may be set meanwhile
        skew = sent_at + half - reply.time
        if self._accounts is not None:
            self._accounts.refresh(reply.accounts or ())
        self._clock = ClockReading(skew_seconds=skew, error_seconds=half)
        return reply.expected

    def _note(self, error: TrainyardError | None) -> None:
        """Log when the server stops or starts to respond, but not each heartbeat in between."""
        answered = error is None
        if answered != self._answered:
            logger.warning("the server answers again" if answered else f"no heartbeat: {error}")
        self._answered = answered
