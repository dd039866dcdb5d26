"""The first process of a worker's container: reaps processes, restarts the worker, and drains.

The worker is a child of this process and may be restarted. When a worker exits, its supervisors
become children of this process, so a crash of Celery does not end training. SIGTERM, which stops a
container, starts a drain. Every supervisor receives SIGTERM, saves and leaves; the worker sends the
reason to the server; this process exits after the last supervisor. SIGUSR1 announces a preemption.
The attempts then save and leave, and the server receives the reason, but the worker stays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

from trainyard.run.atomic import replace_file
from worker.node.node_store import NodeStore
from worker.node.process_tree import become_subreaper, reap
from worker.settings import Settings
from worker.supervisor.preemption import END, signal_supervisors

logger = logging.getLogger(__name__)

WORKER = (sys.executable, "-m", "worker")
RESTART_SECONDS = 2.0
SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
REFUSED = 2
"""Exit status of a worker whose settings or registration are refused."""


class Init:
    """Runs `command`, and restarts it until a signal starts a drain of the node."""

    def __init__(
        self,
        command: Sequence[str] = WORKER,
        *,
        node: NodeStore | None = None,
        most_refusals: int | None = None,
    ) -> None:
        """Describe the process; nothing starts.

        Args:
            command: command line of the worker.
            node: file store of the node; by default, the store that the settings name.
            most_refusals: number of consecutive refusals of the worker after which this process
                exits if no attempt runs. This frees an unused allocation. When absent, refusals
                never end this process.
        """
        self._command = command
        settings = Settings()
        self._node = node or NodeStore(settings.data_dir.resolve())
        self._notice_seconds = settings.notice_seconds
        self._child: int | None = None
        self._restart_at = 0.0
        self._draining = False
        self._most_refusals = most_refusals
        self._refusals = 0

    def run(self) -> int:
        """Run until a drain by SIGTERM or SIGINT is over, or until the worker is refused too often.

        Returns 0, or 2 after too many refusals.
        """
        become_subreaper()
        self._node.leaving.unlink(missing_ok=True)  # from an earlier start of the container
        with contextlib.suppress(OSError):
            self._node.set_deadline(None)
        # Signals are blocked and received by sigtimedwait. With a handler, a signal between check
        # and wait would be noticed a second later.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        while not (self._draining and signal_supervisors(self._node) == 0 and self._child is None):
            self._keep()
            got = signal.sigtimedwait(SIGNALS, 1.0)
            if got is not None and got.si_signo == signal.SIGUSR1:
                self._give_notice("its allocation is about to end", until=END)
            elif got is not None and got.si_signo != signal.SIGCHLD:
                self._drain()
            ended = reap()
            if self._child in ended:
                status = ended[self._child]
                logger.warning("worker ended with status %d", status)
                self._refusals = self._refusals + 1 if status == REFUSED else 0
                self._child = None
                self._restart_at = time.monotonic() + RESTART_SECONDS
                if self._is_refused and not self._node.supervisors():
                    logger.error("the worker was refused %d times: given up", self._refusals)
                    return REFUSED
        logger.info("drained")
        return 0

    def _keep(self) -> None:
        """Start the worker unless it runs, has just crashed, or must no longer run."""
        if self._child is None and not self._draining and time.monotonic() >= self._restart_at:
            # Not subprocess.Popen: `reap` takes the exit status of every child, including this one.
            self._child = os.posix_spawnp(
                self._command[0], list(self._command), os.environ, setsigmask=[]
            )
            logger.info("worker started (pid %d)", self._child)

    @property
    def _is_refused(self) -> bool:
        return self._most_refusals is not None and self._refusals >= self._most_refusals

    def _give_notice(self, reason: str, *, until: str = "") -> None:
        """Write the notice; the attempts then leave, and the server receives the reason."""
        with contextlib.suppress(OSError):  # the drain must continue even on a full disk
            replace_file(self._node.leaving, f"{reason}\n{until}\n")

    def _drain(self) -> None:
        """Stop the worker from taking messages, and have the reason sent to the server."""
        self._draining = True
        seconds = self._notice_seconds
        deadline = None if seconds is None else time.time() + seconds
        self._give_notice("its container is being ended", until=str(deadline or ""))
        with contextlib.suppress(OSError):
            self._node.set_deadline(deadline)  # before the supervisors are signalled
        if self._child is not None:
            os.kill(self._child, signal.SIGTERM)
