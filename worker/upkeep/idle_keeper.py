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

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Pause between two looks for launches that are under way."""
STARTING_SECONDS = 120.0
"""Time after which an attempt without a step no longer delays the next idle supervisor."""
AGAIN = Backoff(first=5.0, longest=600.0)
"""Pauses after an idle supervisor that was never ready."""


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
            elif self._may_start():
                self._start()
            else:
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
            is_ready = bool(status.recv(1))
        except OSError:
            is_ready = False
        if is_ready:
            self._failures.succeeded()
            self.ready.set()
            return
        status.close()
        self._status = None
        if not self.ready.is_set():
            self._failed()
        self.ready.clear()

    def _failed(self) -> None:
        pause = self._failures.failed() or AGAIN.longest
        log = self._node.store.idle_log
        logger.warning("no idle supervisor for %.0f s; the reason is in %s", pause, log)

    def _may_start(self) -> bool:
        return time.monotonic() >= self._failures.next_at and may_start(self._node.store)

    def _start(self) -> None:
        own, its = socket.socketpair()
        identity, store = own_identity(), self._node.store
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
        else:
            self._status = own


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
    return time.time() - began < STARTING_SECONDS


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
