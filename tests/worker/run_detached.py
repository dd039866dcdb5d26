"""`python -m worker supervise` without a fork, with another launcher or with a stand-in.

run_detached.py RUN LOCK_FD LAUNCHER [TRAINER COMMAND]
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from tests.forkserver import ForkServerProcess
from tests.worker.launchers.process_launcher import WARM, launcher_of, warm_launcher
from worker.launchers.rank_environment import TRAINER
from worker.supervisor.supervise import run_detached


class ForkedSupervisor(ForkServerProcess):
    """A supervisor forked by the tests' forkserver: a new interpreter would import for 0.5 s.

    It has its own session, variables and outputs, and runs until a test kills it.
    """

    def __init__(
        self,
        folder: Path,
        lock_fd: int,
        words: tuple[str, ...],
        *,
        environment: Mapping[str, str],
        log: IO[bytes],
    ) -> None:
        """Describe it; lock and log must stay open until `start`, and may then be closed.

        Args:
            folder: the run directory.
            lock_fd: the lock of the attempt, already taken.
            words: the launcher and its trainer.
            environment: its variables. Those that are read only at the start of a process, such as
                `LD_LIBRARY_PATH`, have no effect.
            log: file of both its outputs.
        """
        super().__init__(daemon=True)
        self._folder = folder
        self._words = words
        self._environment = dict(environment)
        self._descriptors = (lock_fd, log.fileno())
        # As in a new interpreter, which ignores Ctrl-C where its parent does.
        self._ignores_interrupts = signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptors": tuple(map(DupFd, self._descriptors))}

    def run(self) -> None:
        """Supervise, in the forked process."""
        lock_fd, log_fd = (each.detach() for each in self._descriptors)  # type: ignore[attr-defined]
        os.setsid()
        for output in (1, 2):
            os.dup2(log_fd, output)
        os.close(log_fd)
        os.chdir(self._folder)
        os.environ.clear()
        os.environ.update(self._environment)
        handler = signal.SIG_IGN if self._ignores_interrupts else signal.default_int_handler
        signal.signal(signal.SIGINT, handler)
        supervise(self._folder, lock_fd, *self._words)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code, or the negative number of its signal."""
        self.join(timeout)
        assert self.exitcode is not None, f"the supervisor runs after {timeout} s"
        return self.exitcode


def supervise(folder: Path, lock_fd: int, kind: str, *trainer: str) -> None:
    """Supervise a run directory in this process, with a launcher of this kind."""
    logging.basicConfig(level=logging.INFO)
    make = warm_launcher if kind == WARM else partial(launcher_of, kind)
    run_detached(folder, lock_fd, make(trainer or TRAINER))


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
