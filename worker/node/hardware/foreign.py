"""Finds processes that use the node's devices but belong to no supervisor of the node."""

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
    """Remove descendants of supervisors; add user and command to the other processes.

    Inside a PID namespace, user and command stay absent. The driver's pids belong to another
    namespace, so `/proc` may show other processes under these numbers.
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
    """Return whether a process descends from one of the pids in `own`, as ranks do."""
    seen: set[int] = set()  # the walk must end even if a pid is reused meanwhile
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
