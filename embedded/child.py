"""One process of the control plane: its log, its port, and its restart after a crash."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from embedded.record import ProcessRecord, identify

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0
"""A process that ran for longer than this number of seconds restarts after the shortest pause."""
MAX_LOG_BYTES = 16 * 2**20
"""Size of a log, in bytes, at which the log is rotated."""
FORMER_LOGS = 3
"""Number of older logs that are kept; `server.log.1` is the newest of them."""
PYTHON = (sys.executable, "-P", "-m")
"""Runs one of our modules, whose name follows. With -P a `server.py` in the folder where a person
typed the command does not take the place of our `server`."""
TAIL_BYTES = 4000
TAIL_LINES = 15
PORTS_TRIED = 200


class Child:
    """A process that is restarted when it ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.log = log
        self._command = tuple(command)
        self._environment = dict(environment)
        self._now = now
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._failures = 0
        self._start_at = 0.0
        self.record: ProcessRecord | None = None
        """Identity of the running process; None while no process runs."""

    def start(self) -> None:
        """Start the process in its own session, so that Ctrl-C in a terminal does not reach it."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started_at = self._now()
        self.record = identify(self._process.pid)

    def exit_code(self) -> int | None:
        """Return the exit code of an ended process, negative after a signal; otherwise None.

        The code is lost once `tend` or `reap` has noticed the end.
        """
        return None if self._process is None else self._process.poll()

    def tend(self) -> str | None:
        """Restart an ended process after a pause; rotate its log if the log is too long.

        Returns:
            A message to the user if the process has ended or runs again; otherwise None.
        """
        rotate(self.log)
        if self._process is None:
            if self._now() < self._start_at:
                return None
            self.start()
            return f"{self.name} runs again"
        code = self._process.poll()
        if code is None:
            return None
        self._process, self.record = None, None
        lived = self._now() - self._started_at
        self._failures = 0 if lived > STEADY_SECONDS else self._failures + 1
        pause = min(FIRST_PAUSE_SECONDS * 2**self._failures, LONGEST_PAUSE_SECONDS)
        self._start_at = self._now() + pause
        return f"{self.name} ended with {_words(code)}; again in {pause:g} s ({self.log})"

    def reap(self) -> None:
        """Reap the ended process."""
        if self._process is not None:
            self._process.wait()
        self._process, self.record = None, None

    def last_lines(self) -> str:
        """Return the last lines of the log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-TAIL_LINES:])


def rotate(log: Path) -> bool:
    """Start a new log if the present one is too large; return whether a new one was started.

    The content is copied and the file is emptied, because the process keeps the file open for
    appending. Output written between these two steps is lost. On a full disk the log is not
    changed.
    """
    try:
        if log.stat().st_size < MAX_LOG_BYTES:
            return False
        for number in range(FORMER_LOGS - 1, 0, -1):
            former = log.with_name(f"{log.name}.{number}")
            if former.exists():
                former.replace(log.with_name(f"{log.name}.{number + 1}"))
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def _words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def next_free_port(host: str, first: int) -> int:
    """Return the first free port, starting at `first`.

    Raises:
        OSError: none of the 200 ports from `first` on is free, or the host is not this machine.
    """
    for port in range(first, min(first + PORTS_TRIED, 65_536)):
        if _is_free(host, port):
            return port
    raise OSError(f"no free port from {first} to {min(first + PORTS_TRIED, 65_536) - 1} on {host}")


def any_free_port(host: str) -> int:
    """Return a free port that the kernel chooses."""
    with _bound(host, 0) as probe:
        return int(probe.getsockname()[1])


def _is_free(host: str, port: int) -> bool:
    try:
        with _bound(host, port):
            return True
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise
        return False


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    probe = socket.socket(family, kind, protocol)
    # As in the server, ports of recently closed connections count as free.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(address)
    except OSError:
        probe.close()
        raise
    return probe
