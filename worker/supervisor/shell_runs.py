"""People's commands in a running attempt: started, watched and ended by the supervisor."""

from __future__ import annotations

import logging
import os
import pty
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.protocol.rest.errors import TrainyardError
from trainyard.protocol.shell_sessions.messages import ShellExit, ShellOrder, ShellOutputMessage
from trainyard.protocol.worker_messages import PROTOCOL
from worker.api import WorkerApi
from worker.launchers.base import Share
from worker.node.node_store import NodeStore
from worker.supervisor.shell_streams import ShellStreams, resize

logger = logging.getLogger(__name__)

NOT_ALLOWED = (
    "this node runs no code that people bring; TRAINYARD_ALLOW_CODE=true for its worker allows it"
)
HANGUP_SECONDS = 2.0
"""Time, in seconds, between SIGHUP and SIGKILL."""
LAST_SECONDS = 10.0
"""Maximum time, in seconds, to send the exits of commands after the end of the attempt."""
SHELLS = ("/bin/bash", "/bin/sh")
"""Default commands; if a person names none, the first existing one runs."""


@dataclass
class _Running:
    pid: int
    pidfd: int
    streams: ShellStreams
    hung_up_at: float | None = None
    exited: bool = False


class ShellRuns:
    """All commands of a share; only the supervisor's main thread calls its methods.

    The processes have the marks and the user of the attempt, so they end with the attempt.
    """

    def __init__(self, share: Share, *, before_start: Callable[[], None]) -> None:
        """Describe the commands; nothing starts. `before_start` is called before each start."""
        self._share = share
        self._before_start = before_start
        self._running: list[_Running] = []
        self._seen: set[str] = set()

    @property
    def pidfds(self) -> Sequence[int]:
        """Pidfds of the processes; each becomes readable when its process ends."""
        return [each.pidfd for each in self._running if not each.exited]

    def poll(self, orders: Sequence[ShellOrder]) -> None:
        """Start new commands; check which processes have ended or must end."""
        for order in orders:
            if order.id not in self._seen:
                self._seen.add(order.id)
                self._open(order)
        for each in self._running:
            if not each.exited:
                self._watch(each)
        over = [each for each in self._running if each.exited and each.streams.over]
        for each in over:
            os.close(each.pidfd)
            self._running.remove(each)

    def close(self) -> None:
        """Send the exits of all commands; their processes have ended with the attempt."""
        for each in self._running:
            if not each.exited:
                status = self._share.processes.status(each.pid)
                each.exited = True
                each.streams.ended(-signal.SIGKILL if status is None else status)
        deadline = time.monotonic() + LAST_SECONDS
        for each in self._running:
            each.streams.join(max(deadline - time.monotonic(), 0.0))

    def _open(self, order: ShellOrder) -> None:
        if not self._share.launch.allow_code:
            self._refuse(order.id, NOT_ALLOWED)
            return
        try:
            self._start(order)
        except OSError as error:
            logger.exception("command %s did not start", order.id)
            self._refuse(order.id, f"it did not start: {error}")

    def _start(self, order: ShellOrder) -> None:
        self._before_start()
        terminal = order.terminal
        if terminal is not None:
            output, other = pty.openpty()
            resize(output, terminal)
            if (user := self._share.launch.user) is not None:
                os.fchown(other, user.uid, -1)  # programs reopen the terminal by its path
            given, files = os.dup(output), _terminal_files(os.ttyname(other))
            theirs = [other]
        else:
            (read, given), (output, write) = os.pipe(), os.pipe()
            files = [(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_DUP2, write, 1),
                     (os.POSIX_SPAWN_DUP2, write, 2)]  # fmt: skip
            theirs = [read, write]
        command = order.argv or (next(filter(os.path.exists, SHELLS)),)
        try:
            pid = self._share.processes.attach(
                command, environment=self._environment(order), files=files
            )
        except OSError:
            for descriptor in (output, given):
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        streams = ShellStreams(self._share, order.id, output=output, given=given, terminal=terminal)
        streams.start()
        self._running.append(_Running(pid, os.pidfd_open(pid), streams))
        logger.info("command %s runs as pid %d", order.id, pid)

    def _environment(self, order: ShellOrder) -> dict[str, str]:
        environment = dict(self._share.environment)
        if order.terminal is not None:
            environment["TERM"] = order.terminal.kind
        if order.rank is not None:
            environment["RANK"] = str(order.rank)
            environment["LOCAL_RANK"] = str(order.rank - self._share.ranks.start)
        return environment

    def _watch(self, each: _Running) -> None:
        status = self._share.processes.status(each.pid)
        if status is not None:
            each.exited = True
            each.streams.ended(status)
        elif each.streams.unwanted:
            self._end(each)

    def _end(self, each: _Running) -> None:
        """Send SIGHUP, later SIGKILL; the pid cannot be reused before the process is reaped."""
        now = time.monotonic()
        if each.hung_up_at is None:
            each.hung_up_at = now
            _signal_session(each.pid, signal.SIGHUP)
        elif now - each.hung_up_at > HANGUP_SECONDS:
            _signal_session(each.pid, signal.SIGKILL)

    def _refuse(self, shell_id: str, reason: str) -> None:
        """Send a refusal from a thread, because the main thread watches the ranks."""
        message = ShellOutputMessage(
            protocol=PROTOCOL, start=0, exit=ShellExit(failure=reason[:2000])
        )
        threading.Thread(target=self._send, args=(shell_id, message), daemon=True).start()

    def _send(self, shell_id: str, message: ShellOutputMessage) -> None:
        share = self._share
        token = share.run.secret.read_text(encoding="ascii").strip()
        node = NodeStore(Path(share.launch.data_dir))
        try:
            with WorkerApi(node.server_url or "", token, ca_file=node.server_ca) as api:
                api.shell_output(share.launch.attempt_id, shell_id, message)
        except TrainyardError as error:
            logger.info("the refusal of command %s was not sent: %s", shell_id, error)


def _terminal_files(name: str) -> list[tuple[Any, ...]]:
    return [
        (os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]


def _signal_session(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        logger.warning("command of pid %d may not be ended by %s", pid, number.name)
