"""The supervisor's side of a forkserver: starts it, lets it fork once, adopts its children.

The children wait at a gate. After an error before the gate opens, torchrun can still launch the
ranks.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from worker.launchers.rank_environment import rank_environment
from worker.launchers.warm.forkserver import MESSAGE_BYTES, ForkedLaunch, run_forkserver
from worker.node.process_tree import MARKER, NODE_MARKER

PRELOADED = "trainer.__main__"
"""Module to import in advance; a launch's processes run its entry function."""
FORK_SECONDS = 20.0
"""Time limit, in seconds, for a response, and again for the forkserver's exit. Both usually take
0.1 s in total.
"""
UNMARKED = "0" * 26
"""Placeholder for the attempt's id in the marks of a process; it is as long as an id."""


def environment_of_imports(*, node: str, threads: int) -> dict[str, str]:
    """Return the environment variables of a process that forks forkservers.

    A rank has the same variables, but overwrites the placeholder for the attempt's id.

    Args:
        node: name of the node.
        threads: threads per rank (`OMP_NUM_THREADS`), unless the node's variables set them.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        **rank_environment(),
        "PYTHONUNBUFFERED": "1",
        MARKER: UNMARKED,
        NODE_MARKER: node,
    }


class ForkserverError(Exception):
    """The forkserver cannot fork, so the launch is cold."""


class Forkserver:
    """A forkserver of this process; it ends when this process ends."""

    def __init__(self, pid: int, control: socket.socket, environment: Mapping[str, str]) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        """Pidfd, readable once the forkserver has ended."""
        self._control = control
        self.environment = environment
        """Variables during the forkserver's imports; they equal those of a rank."""

    @classmethod
    def start(cls, module: Any, environment: Mapping[str, str]) -> Forkserver:
        """Fork a forkserver; this process must have one thread and no launch data.

        Args:
            module: module whose entry function the children run; already imported.
            environment: variables that were set during the import; they equal those of a rank.

        Raises:
            OSError: the process cannot be forked.
        """
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor = os.getpid()
        with its:
            pid = os.fork()
            if pid == 0:
                run_forkserver(its, module, supervisor=supervisor)
        return cls(pid, own, environment)

    def fork(self, request: ForkedLaunch) -> list[int]:
        """Let the forkserver fork; its children become children of this process.

        Returns:
            Pids of the children, in the order of the request; the forkserver has ended.

        Raises:
            ForkserverError: the fork failed; any children that it created exit at the gate.
        """
        gate, opener = os.pipe()
        try:
            try:
                socket.send_fds(self._control, [request.to_json()], [gate])
            finally:
                os.close(gate)
            pids: list[int] = self._receive()["pids"]
            if not _is_readable(self.pidfd, FORK_SECONDS):
                raise ForkserverError("the forkserver does not end")
            os.write(opener, b"\0" * len(pids))
        except OSError as error:
            raise ForkserverError(f"the forkserver cannot be reached: {error}") from error
        finally:
            os.close(opener)  # a child that reads nothing exits
        return pids

    def end(self) -> None:
        """End the forkserver; the process tree reaps it."""
        with suppress(ProcessLookupError):  # it has ended and was reaped
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._control.close()

    def _receive(self) -> dict[str, Any]:
        if not _is_readable(self._control.fileno(), FORK_SECONDS):
            raise ForkserverError(f"the forkserver does not answer within {FORK_SECONDS:.0f} s")
        message = self._control.recv(MESSAGE_BYTES)
        if not message:
            raise ForkserverError("the forkserver has ended")
        answer: dict[str, Any] = json.loads(message)
        if answer.get("error"):
            raise ForkserverError(answer["error"])
        return answer


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
