"""The supervisor's side of a forkserver: forks it, has it fork once, and is its children's parent.

Until the gate opens no child does anything, so whatever goes wrong before is no failed launch.
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
"""Module that is imported before, and that the processes of a launch enter."""
FORK_SECONDS = 20.0
"""Longest time for an answer, and for its end after that; usually 0.1 s in all."""
UNMARKED = "0" * 26
"""Mark of a process that belongs to no attempt yet; ids are as long."""


def environment_of_imports(*, node: str, threads: int) -> dict[str, str]:
    """Return the variables of a process from which forkservers are forked.

    They are those of a rank, with marks whose places in memory the ranks' own marks take.

    Args:
        node: name of the node.
        threads: threads of a rank (`OMP_NUM_THREADS`), unless the node's variables set them.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        **rank_environment(),
        "PYTHONUNBUFFERED": "1",
        MARKER: UNMARKED,
        NODE_MARKER: node,
    }


class ForkserverError(Exception):
    """The forkserver forks nothing; a cold launch takes its place."""


class Forkserver:
    """A forkserver that this process has started; it ends with this process."""

    def __init__(self, pid: int, control: socket.socket, environment: Mapping[str, str]) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        """Readable when it has ended."""
        self._control = control
        self.environment = environment
        """Variables that its imports have seen, as a rank would have them."""

    @classmethod
    def start(cls, module: Any, environment: Mapping[str, str]) -> Forkserver:
        """Fork one from this process, which has one thread and holds nothing of a launch.

        Args:
            module: what its children enter; it is imported.
            environment: variables that its import has seen, as a rank would have them.

        Raises:
            OSError: the system refuses.
        """
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor = os.getpid()
        with its:
            pid = os.fork()
            if pid == 0:
                run_forkserver(its, module, supervisor=supervisor)
        return cls(pid, own, environment)

    def fork(self, request: ForkedLaunch) -> list[int]:
        """Have it fork, and let its children begin; they are this process's own by then.

        Returns:
            Their pids, in the order of the request. The forkserver has ended.

        Raises:
            ForkserverError: it has forked nothing, or nothing that begins.
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
            os.close(opener)  # a child that has read nothing ends
        return pids

    def end(self) -> None:
        """End it; the process tree reaps it."""
        with suppress(ProcessLookupError):  # it has ended, and been reaped
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
