"""Identifies a process beyond its pid, which the kernel reuses."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass
from pathlib import Path

from trainyard.protocol.worker_messages import Identity

ZOMBIE_STATES = frozenset("ZXx")
INITIAL_PID_NAMESPACE = "4026531836"
"""Inode of the machine's initial PID namespace, a constant of Linux."""


@dataclass(frozen=True)
class ProcessStat:
    """Fields of `/proc/<pid>/stat`."""

    pid: int
    parent: int
    state: str
    start_time: int
    """Start time, in clock ticks after boot."""

    @property
    def ended(self) -> bool:
        """Whether the process has ended; a zombie that waits for its parent has ended too."""
        return self.state in ZOMBIE_STATES


def process_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process; None if no process has that pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses, but may hold spaces and parentheses itself.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(pid, parent=int(fields[1]), state=fields[0], start_time=int(fields[19]))


def status_field(pid: int | str, name: str) -> str:
    """Return a field of `/proc/<pid>/status`; empty if no process has that pid."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = (line.partition(":") for line in lines.splitlines())
    return next((value.strip() for key, _, value in found if key == name), "")


def ids_of(pid: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return the user ids and the group ids of a process; empty if no process has that pid."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset(), frozenset()
    found = {"Uid": "", "Gid": "", "Groups": ""}
    found |= {key: value for key, _, value in (ln.partition(":") for ln in lines.splitlines())}
    return frozenset(found["Uid"].split()), frozenset((found["Gid"] + found["Groups"]).split())


def boot_id() -> str:
    """Return the id that the kernel chose at boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identify(pid: int) -> Identity | None:
    """Return the identity of a process in this PID namespace; None if it has ended."""
    stat = process_stat(pid)
    if stat is None or stat.ended:
        return None
    return Identity(
        boot_id=boot_id(),
        pid_namespace=_pid_namespace(),
        pid=pid,
        start_time=stat.start_time,
    )


def own_identity() -> Identity:
    """Return the identity of this process."""
    identity = identify(os.getpid())
    assert identity is not None
    return identity


def open_process(identity: Identity) -> int | None:
    """Return a pidfd of an identity's process; None if it ended or is in another PID namespace."""
    if identity.boot_id != boot_id() or identity.pid_namespace != _pid_namespace():
        return None
    return open_started_at(identity.pid, identity.start_time)


def open_started_at(pid: int, start_time: int) -> int | None:
    """Return a pidfd of process `pid`, started at `start_time`; None if it has ended."""
    # Open the pidfd before the comparison. A pidfd always refers to one process, while another
    # process could get the pid between comparison and open.
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    stat = process_stat(pid)
    # A zombie keeps pid and start time until it is reaped. Its pidfd is readable, so it counts as
    # ended.
    if stat is None or stat.start_time != start_time or has_ended(pidfd):
        os.close(pidfd)
        return None
    return pidfd


def is_alive(identity: Identity) -> bool:
    """Return whether the process with an identity still runs in this PID namespace."""
    pidfd = open_process(identity)
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def has_ended(pidfd: int) -> bool:
    """Return whether the process behind a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def in_initial_pid_namespace() -> bool:
    """Return whether drivers and this process use the same pids; False in most containers."""
    return _pid_namespace() == INITIAL_PID_NAMESPACE


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
