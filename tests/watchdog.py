"""Ends what a run of the tests started, once the run is over, however it ended.

Fixtures end what they start, but not when pytest is killed, and a database, a supervisor or a
worker is detached on purpose. So each run has a mark in its environment, which all that it starts
inherits, and a process outside the run that waits for the run's end (a pidfd, so that `kill -9`
counts too) and then ends whatever carries the mark.
"""

import contextlib
import os
import secrets
import select
import signal
import sys
import time
from pathlib import Path

MARK = "TRAINYARD_TEST_RUN"
ROUNDS = 50
"""Looks at the processes: what is being forked in one of them is found in the next."""
PAUSE_SECONDS = 0.05


def watch() -> None:
    """Mark this run, and have a process of its own end what is left of it; once a run."""
    if MARK in os.environ:  # a process of a run that is watched
        return
    environment = dict(os.environ)  # without the mark: the process is not to end itself
    os.environ[MARK] = secrets.token_hex(16)
    nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), os.environ[MARK]],
        environment,
        file_actions=nothing,
        setsid=True,  # Ctrl-C is for the run
    )


def end_marked(token: str) -> None:
    """Kill every process that carries the mark of a run, until none is left."""
    mark = f"{MARK}={token}".encode()
    for _ in range(ROUNDS):
        found = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _has(p, mark)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)


def _has(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False


def main(pid: int, token: str) -> None:
    """Wait for the end of a process, then end what carries the mark."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    else:
        select.select([descriptor], [], [])
    end_marked(token)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
