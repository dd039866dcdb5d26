"""Which process is meant: a pid alone may have passed to another one."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass
from pathlib import Path

from trainyard.protocol.worker_messages import Identity

ZOMBIE_STATES = frozenset("ZXx")


@dataclass(frozen=True)
class ProcessStat:
    """What /proc says of a process."""

    pid: int
    parent: int
    state: str
    start_time: int
    """Clock ticks after boot."""

    @property
    def ended(self) -> bool:
        """Whether it has ended and only waits for its parent to notice."""
        return self.state in ZOMBIE_STATES


def process_stat(pid: int) -> ProcessStat | None:
    """Return what /proc says of a process, or None when there is none of that pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may hold spaces and parentheses itself.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(pid, parent=int(fields[1]), state=fields[0], start_time=int(fields[19]))


def boot_id() -> str:
    """Return the id that the kernel took when it booted."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identify(pid: int) -> Identity | None:
    """Return the identity of a process of this PID namespace, or None when it has ended."""
    stat = process_stat(pid)
    if stat is None or stat.ended:
        return None
    return Identity(
        boot_id=boot_id(),
        pid_namespace=_pid_namespace(),
        pid=pid,
        start_time=stat.start_time,
    )


def open_process(identity: Identity) -> int | None:
    """Return a pidfd of the very process that is meant, or None when it has ended.

    The pidfd is opened first and compared afterwards: what it refers to cannot change.
    """
    if identity.boot_id != boot_id() or identity.pid_namespace != _pid_namespace():
        return None
    return open_started_at(identity.pid, identity.start_time)


def open_started_at(pid: int, start_time: int) -> int | None:
    """Return a pidfd of the process `pid` that began at `start_time`, or None when it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    stat = process_stat(pid)
    # One that nobody has reaped still has its pid and start time, but its pidfd is readable.
    if stat is None or stat.start_time != start_time or has_ended(pidfd):
        os.close(pidfd)
        return None
    return pidfd


def is_alive(identity: Identity) -> bool:
    """Return whether the very process that is meant still runs."""
    pidfd = open_process(identity)
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
