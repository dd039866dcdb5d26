"""The first process of a worker's container: reaps, restarts the worker, drains at the end.

The worker is its child and may be restarted; supervisors become its children when the worker that
launched them ends, so that a crash of Celery does not end training. SIGTERM, with which a container
is stopped, becomes a drain: every supervisor receives SIGTERM, on which it saves and leaves, the
worker sends the reason to the server, and this process ends after the last of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

from worker.node.node_store import NodeStore
from worker.node.process_tree import become_subreaper, reap
from worker.settings import Settings
from worker.supervisor.preemption import signal_supervisors

logger = logging.getLogger(__name__)

WORKER = (sys.executable, "-m", "worker")
RESTART_SECONDS = 2.0
SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class Init:
    """Runs `command`, and restarts it until a signal starts the drain of the node."""

    def __init__(self, command: Sequence[str] = WORKER, *, node: NodeStore | None = None) -> None:
        self._command = command
        self._node = node or NodeStore(Settings().data_dir.resolve())
        self._child: int | None = None
        self._restart_at = 0.0
        self._draining = False

    def run(self) -> int:
        """Run until a SIGTERM or SIGINT has been carried out; returns 0."""
        become_subreaper()
        self._node.leaving.unlink(missing_ok=True)  # of an earlier life of the container
        # Blocked and taken by sigtimedwait: a handler could run between the check and the wait,
        # and the wait would then last its whole second.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        while not (self._draining and signal_supervisors(self._node) == 0 and self._child is None):
            self._keep()
            got = signal.sigtimedwait(SIGNALS, 1.0)
            if got is not None and got.si_signo != signal.SIGCHLD:
                self._drain()
            ended = reap()
            if self._child in ended:
                logger.warning("worker ended with status %d", ended[self._child])
                self._child = None
                self._restart_at = time.monotonic() + RESTART_SECONDS
        logger.info("drained")
        return 0

    def _keep(self) -> None:
        """Start the worker unless it runs, has just crashed, or is to run no more."""
        if self._child is None and not self._draining and time.monotonic() >= self._restart_at:
            # Not subprocess.Popen: `reap` takes the status of every child, this one included.
            self._child = os.posix_spawnp(
                self._command[0], list(self._command), os.environ, setsigmask=[]
            )
            logger.info("worker started (pid %d)", self._child)

    def _drain(self) -> None:
        """Have the worker take no more messages and send the reason to the server."""
        self._draining = True
        with contextlib.suppress(OSError):  # the drain does not depend on a full disk
            self._node.leaving.write_text("its container is being ended\n", encoding="utf-8")
        if self._child is not None:
            os.kill(self._child, signal.SIGTERM)
