"""Keeps one idle process on the node; this process forks the supervisors of launches."""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import subprocess
import threading
import time

from trainyard.base.backoff import Backoff, Retries
from worker.launch import detach
from worker.launchers.warm.fork_client import environment_of_imports
from worker.node.node_store import LocalNode
from worker.node.process_identity import own_identity
from worker.warm.hand_over import CHANGED, READY

logger = logging.getLogger(__name__)

AGAIN = Backoff(first=5.0, longest=600.0)
"""Pauses before a restart of an idle process that ended unexpectedly."""


class IdleKeeper(threading.Thread):
    """The thread that starts an idle process, and replaces it when it ends.

    The imports run at normal priority, because an unprivileged process could not raise a lower
    priority again for training.
    """

    def __init__(self, node: LocalNode) -> None:
        super().__init__(name="idle-keeper", daemon=True)
        self._node = node
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        self._failures = Retries(AGAIN)
        self._status: socket.socket | None = None
        self._ready_at = math.inf
        self._pair: tuple[socket.socket, ...] = ()
        # Celery may fork a long-lived pool process at any time. If that process held a copy of the
        # pipe's end, the exit of the idle process would go unnoticed.
        self._no_fork = threading.Lock()
        os.register_at_fork(
            before=self._no_fork.acquire,
            after_in_parent=self._no_fork.release,
            after_in_child=self._close_copies,
        )
        self.ready = threading.Event()
        """Set while an idle process waits for launches."""

    def run(self) -> None:
        """Keep an idle process until `stop`."""
        while not _is_readable(self._ended, max(0.0, self._failures.next_at - time.monotonic())):
            if self._status is None:
                self._start()
            else:
                self._watch(self._status)
        if self._status is not None:
            self._status.close()

    def stop(self) -> None:
        """Start no more idle processes; the present one ends with its worker."""
        os.eventfd_write(self._ended, 1)

    def _close_copies(self) -> None:
        for each in self._pair:
            each.close()
        self._no_fork.release()

    def _watch(self, status: socket.socket) -> None:
        """Wait until the idle process is ready or has ended."""
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
            self._ready_at = time.monotonic()
            self.ready.set()
            return
        status.close()
        self._status = None
        self.ready.clear()
        if word == CHANGED or time.monotonic() > self._ready_at + AGAIN.longest:
            self._failures.succeeded()
        if word != CHANGED:  # even if the process was ready: memory may be short
            self._failed()

    def _failed(self) -> None:
        pause = self._failures.failed() or AGAIN.longest
        log = self._node.store.idle_log
        logger.warning("no idle process for %.0f s; the reason is in %s", pause, log)

    def _start(self) -> None:
        """Start an idle process; if that fails, a later call tries again."""
        identity, store = own_identity(), self._node.store
        try:
            with self._no_fork:
                own, its = self._pair = socket.socketpair()
        except OSError:
            logger.exception("an idle process could not be started")
            self._failed()
            return
        try:
            with its:
                store.idle_log.unlink(missing_ok=True)
                detach(
                    [
                        *("idle", str(store.data_dir)),
                        f"--worker-pid={identity.pid}",
                        f"--worker-start={identity.start_time}",
                        f"--status={its.fileno()}",
                    ],
                    log=store.idle_log,
                    folder=store.data_dir,
                    pass_fds=[its.fileno()],
                    environment=environment_of_imports(
                        node=self._node.name, threads=self._node.devices.threads_per_slot
                    ),
                )
        except (OSError, subprocess.SubprocessError):
            logger.exception("an idle process could not be started")
            own.close()
            self._failed()
            return
        self._status, self._ready_at = own, math.inf


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
