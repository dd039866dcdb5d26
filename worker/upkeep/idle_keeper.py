"""Keeps one idle supervisor on the node, and starts the next one when it does not disturb."""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import threading
import time
from pathlib import Path

from trainyard.base.backoff import Backoff, Retries
from worker.launch import detach
from worker.node.node_store import LocalNode, NodeStore, WorkerRun
from worker.node.process_identity import own_identity
from worker.warm.hand_over import READY, USED

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Pause between two looks for launches that are under way."""
STARTING_SECONDS = 120.0
"""Time after which an attempt without a step no longer delays the next idle supervisor."""
AGAIN = Backoff(first=5.0, longest=600.0)
"""Pauses after an idle supervisor that ended before a launch came."""


class IdleKeeper(threading.Thread):
    """The thread that starts idle supervisors, one after another, for launches of the trainer.

    It starts one while no attempt here is on its way to its first step: the imports take more than
    a second of a core. They run at the usual priority, because a process without privileges could
    not raise it again for training.
    """

    def __init__(self, node: LocalNode) -> None:
        super().__init__(name="idle-keeper", daemon=True)
        self._node = node
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        self._failures = Retries(AGAIN)
        self._status: socket.socket | None = None
        self.ready = threading.Event()
        """Set while an idle supervisor waits."""

    def run(self) -> None:
        """Keep one until `stop`."""
        while not _is_readable(self._ended, 0.0):
            if self._status is not None:
                self._watch(self._status)
            elif not self._start():
                _is_readable(self._ended, LOOK_SECONDS)
        if self._status is not None:
            self._status.close()

    def stop(self) -> None:
        """Start no more. The idle supervisor ends with the worker's process."""
        os.eventfd_write(self._ended, 1)

    def _watch(self, status: socket.socket) -> None:
        """Wait until the idle supervisor is ready, or has taken a launch or ended."""
        poll = select.poll()
        for descriptor in (status.fileno(), self._ended):
            poll.register(descriptor, select.POLLIN)
        if (self._ended, select.POLLIN) in poll.poll():
            return
        try:
            word = status.recv(1)
        except OSError:
            word = b""
        if word == READY:
            self.ready.set()
            return
        status.close()
        self._status = None
        self.ready.clear()
        if word == USED:
            self._failures.succeeded()
        else:  # also one that was ready: memory may not suffice for another process
            self._failed()

    def _failed(self) -> None:
        pause = self._failures.failed() or AGAIN.longest
        log = self._node.store.idle_log
        logger.warning("no idle supervisor for %.0f s; the reason is in %s", pause, log)

    def _may_start(self) -> bool:
        return time.monotonic() >= self._failures.next_at and may_start(self._node.store)

    def _start(self) -> bool:
        """Start one, if it may be now; return whether that was done."""
        identity, store = own_identity(), self._node.store
        try:
            if not self._may_start():
                return False
            own, its = socket.socketpair()
        except OSError:
            logger.exception("an idle supervisor could not be started")
            self._failed()
            return False
        try:
            with its:
                store.idle_log.unlink(missing_ok=True)
                detach(
                    [
                        *("idle", str(store.data_dir), self._node.name),
                        f"--worker-pid={identity.pid}",
                        f"--worker-start={identity.start_time}",
                        f"--threads={self._node.devices.threads_per_slot}",
                        f"--status={its.fileno()}",
                    ],
                    log=store.idle_log,
                    folder=store.data_dir,
                    pass_fds=[its.fileno()],
                )
        except (OSError, subprocess.SubprocessError):
            logger.exception("an idle supervisor could not be started")
            own.close()
            self._failed()
            return False
        self._status = own
        return True


def may_start(node: NodeStore) -> bool:
    """Return whether no attempt of a node is on its way to its first step."""
    return not any(_is_starting(node.run_of(attempt_id)) for attempt_id in node.live())


def _is_starting(run: WorkerRun | None) -> bool:
    """Return whether an attempt that is not over here is on its way to its first step."""
    if run is None:
        return True  # it is being claimed
    if any(Path(record).exists() for record in (run.metrics, run.exit, run.outcome)):
        return False
    try:
        began = Path(run.launch).stat().st_mtime
    except FileNotFoundError:
        return True
    return abs(time.time() - began) < STARTING_SECONDS  # the clock may have been set back


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
