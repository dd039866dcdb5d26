"""Cgroups (version 2): the limits of the worker's own, and one for the processes of an attempt.

What the processes of a cgroup start stays in it whatever they do, and the kernel ends all of it at
once. Where none can be had, subreaper, parent-death signals and the environment's mark do the same
work.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class CgroupLimits:
    """What the cgroups above this process leave it: the tightest limit of each kind."""

    cores: int | None = None
    """Whole cores of the CPU quota, at least one; None without a quota."""
    memory_bytes: int | None = None
    """Limit of memory; None without one."""
    memory_used_bytes: int | None = None
    """What the cgroup of that limit uses, without file pages that the kernel can drop."""


def cgroup_limits(cgroup: Path | None = None) -> CgroupLimits:
    """Return the limits of a cgroup and those above it; of this process's own when absent."""
    limits = CgroupLimits()
    folder = cgroup or _own_cgroup()
    while folder is not None and (folder / "cgroup.controllers").exists():
        quota, _, period = _first_line(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = max(1, int(quota) // int(period))
            limits = replace(limits, cores=min(cores, limits.cores or cores))
        limit = _first_line(folder / "memory.max")
        if limit.isdigit() and int(limit) < (limits.memory_bytes or 1 << 63):
            used = max(0, _number(folder / "memory.current") - _droppable(folder))
            limits = replace(limits, memory_bytes=int(limit), memory_used_bytes=used)
        folder = folder.parent
    return limits


def make_cgroup(attempt_id: str, *, node: str) -> Path | None:
    """Return the cgroup of an attempt on a node, below that of this process, or None.

    Each call returns the same one, as long as the worker itself stays in its cgroup.
    """
    parent = _own_cgroup()
    if parent is None:
        return None
    cgroup = parent / f"trainyard-{attempt_id}-{node}"
    try:
        cgroup.mkdir(exist_ok=True)
        writable = os.access(cgroup / "cgroup.procs", os.W_OK)
    except OSError:
        return None
    return cgroup if writable else None


def end_cgroup(cgroup: Path) -> None:
    """End every process of a cgroup; older kernels than 5.14 leave that to the other means."""
    with contextlib.suppress(OSError):
        (cgroup / "cgroup.kill").write_text("1", encoding="ascii")


def remove_cgroup(cgroup: Path) -> None:
    """Remove a cgroup that holds no process any more."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()


def _own_cgroup() -> Path | None:
    """Return the folder of this process's cgroup in the version 2 hierarchy."""
    own = next(
        (line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")),
        None,
    )
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        if own is not None and after.startswith("cgroup2 "):
            root, mount_point = before.split()[3:5]
            return Path(mount_point) / os.path.relpath(own, root)
    return None


def _droppable(cgroup: Path) -> int:
    """Return the bytes of file pages that were not used lately."""
    counts = (line.split() for line in _lines(cgroup / "memory.stat"))
    return next((int(count) for name, count in counts if name == "inactive_file"), 0)


def _number(path: Path) -> int:
    line = _first_line(path)
    return int(line) if line.isdigit() else 0


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
