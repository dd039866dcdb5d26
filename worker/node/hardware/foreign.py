"""Finds processes on the devices that were not started by a supervisor of this node."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Collection
from pathlib import Path

from trainyard.protocol.node_samples import AcceleratorSample, DeviceProcess
from worker.node.process_identity import in_initial_pid_namespace, process_stat

Supervisors = Callable[[], Collection[int]]
"""Returns the pids of this node's live supervisors."""


def without_own(
    samples: tuple[AcceleratorSample, ...], supervisors: Supervisors
) -> tuple[AcceleratorSample, ...]:
    """Remove processes below a supervisor; add user and command to the remaining processes.

    Inside a PID namespace, no user and command are added: the driver's pids belong to another
    namespace, so `/proc` may show unrelated processes under these numbers.
    """
    if not any(sample.foreign for sample in samples):
        return samples
    own = frozenset(supervisors())
    name = _named if in_initial_pid_namespace() else _unnamed
    return tuple(
        sample.model_copy(
            update={"foreign": tuple(name(p) for p in sample.foreign if not _is_below(p.pid, own))}
        )
        for sample in samples
    )


def _is_below(pid: int, own: Collection[int]) -> bool:
    """Return whether a process descends from one of the pids `own`, as ranks from a supervisor."""
    seen: set[int] = set()  # a pid may be reused during the walk, which must still end
    while pid > 1 and pid not in seen:
        if pid in own:
            return True
        seen.add(pid)
        stat = process_stat(pid)
        if stat is None:
            return False
        pid = stat.parent
    return False


def _named(process: DeviceProcess) -> DeviceProcess:
    folder = Path(f"/proc/{process.pid}")
    try:
        uid = folder.stat().st_uid
        command = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # the process has ended
        return process
    name = "".join(each if each.isprintable() else "?" for each in command)
    return process.model_copy(update={"user": _user(uid), "command": name})


def _unnamed(process: DeviceProcess) -> DeviceProcess:
    return process


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
