"""The supervisor's side of a forkserver: starts it, has it fork once, and is its children's parent.

Until the gate opens no child does anything, so whatever goes wrong before is no failed launch.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from worker.launchers.rank_environment import rank_environment
from worker.launchers.warm.forkserver import MESSAGE_BYTES, ForkedLaunch
from worker.node.process_tree import MARKER, NODE_MARKER, ProcessTree

FORKSERVER = (sys.executable, "-P", "-m", "worker.launchers.warm.forkserver")
CONTROL = 4
"""Descriptor of its socket; the one before it holds the variables while it starts."""
PRELOADED = "trainer.__main__"
"""Module that it imports, and that its children enter."""
FORK_SECONDS = 20.0
"""Longest time for an answer, and for its end after that; usually 0.1 s in all."""
UNMARKED = "0" * 26
"""Mark of a forkserver, which belongs to no attempt; ids are as long."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""What keeps numpy's BLAS, which the trainer does not use, from starting threads at its import."""
CACHES = "TORCHINDUCTOR_CACHE_DIR"
"""Variable of a folder that torch makes at its import; by default it lies below `/tmp`, where any
user can put something else in its place. A rank has its own value."""


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
    def start(cls, *, node: str, log: Path, threads: int, module: str = PRELOADED) -> Forkserver:
        """Start one, which imports; call it from the main thread, before any other starts.

        Args:
            node: name of the node, which its children's marks have.
            log: file to which it prints.
            threads: threads of a rank (`OMP_NUM_THREADS`), unless the node's variables set them.
            module: what it imports, and what its children enter.

        Raises:
            OSError: the system refuses.
        """
        environment = {"OMP_NUM_THREADS": str(threads), **rank_environment()}
        environment["PYTHONUNBUFFERED"] = "1"
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with its:
            pid = ProcessTree().attach(
                [*FORKSERVER, str(CONTROL), module],
                environment={
                    **ONE_THREAD,
                    **environment,
                    CACHES: str(log.parent),  # which is there: nothing is made
                    MARKER: UNMARKED,
                    NODE_MARKER: node,
                },
                files=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    (os.POSIX_SPAWN_DUP2, its.fileno(), CONTROL),
                ],
            )
        return cls(pid, own, environment)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when it has imported, or has ended."""
        return self._control.fileno()

    def await_ready(self) -> None:
        """Wait until it has imported everything.

        Raises:
            ForkserverError: it must not fork, or has ended.
        """
        self._receive(None)

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
            pids: list[int] = self._receive(FORK_SECONDS)["pids"]
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

    def _receive(self, seconds: float | None) -> dict[str, Any]:
        if seconds is not None and not _is_readable(self._control.fileno(), seconds):
            raise ForkserverError(f"the forkserver does not answer within {seconds:.0f} s")
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
