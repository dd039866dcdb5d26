"""Cgroups: the limits of the worker's own, and one (version 2) for each attempt's processes.

Every process started in a cgroup stays in it, and the kernel ends all of them in one call. Without
a cgroup, the subreaper, parent-death signals and the marks in the environment do the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

PROCESS = Path("/proc/self")
UNLIMITED_BYTES = 1 << 62
"""Memory limit from which on there is none: version 1 has no other notation for that."""


@dataclass(frozen=True)
class CgroupLimits:
    """The limits of this process' cgroups: the tightest of each kind."""

    cores: int | None = None
    """Whole cores of the CPU quota, at least one; None without a quota."""
    memory_bytes: int | None = None
    """Limit of memory; None without one."""
    memory_used_bytes: int | None = None
    """Memory used in the cgroup of that limit, without file pages that the kernel can drop."""

    def with_quota(self, quota: str, period: str) -> CgroupLimits:
        """Return these limits, tightened by a CPU quota if it is one."""
        if not quota.isdigit() or not period.isdigit():  # `max`, or -1 in version 1
            return self
        cores = max(1, int(quota) // int(period))
        return replace(self, cores=min(cores, self.cores or cores))

    def with_memory(self, limit: str, used: int) -> CgroupLimits:
        """Return these limits, tightened by a memory limit if it is one."""
        if not limit.isdigit() or int(limit) >= (self.memory_bytes or UNLIMITED_BYTES):
            return self
        return replace(self, memory_bytes=int(limit), memory_used_bytes=max(0, used))


def cgroup_limits(cgroup: Path | None = None, *, process: Path = PROCESS) -> CgroupLimits:
    """Return the limits of a cgroup of version 2 and of its ancestors.

    Without `cgroup`, return those of a process: its cgroups of version 2 and of version 1.

    Args:
        cgroup: folder of the cgroup.
        process: folder of the process below `/proc`.
    """
    limits = CgroupLimits()
    for folder in _upwards(cgroup or _own_cgroup(process), holding="cgroup.controllers"):
        quota, _, period = _first_line(folder / "cpu.max").partition(" ")
        limits = limits.with_quota(quota, period)
        used = _number(folder / "memory.current") - _droppable(folder, "inactive_file")
        limits = limits.with_memory(_first_line(folder / "memory.max"), used)
    if cgroup is not None:
        return limits
    for folder in _upwards(_own_cgroup(process, controller="cpu"), holding="cgroup.procs"):
        quota, period = (_first_line(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        limits = limits.with_quota(quota, period)
    for folder in _upwards(_own_cgroup(process, controller="memory"), holding="cgroup.procs"):
        used = _number(folder / "memory.usage_in_bytes")
        used -= _droppable(folder, "total_inactive_file")
        limits = limits.with_memory(_first_line(folder / "memory.limit_in_bytes"), used)
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
    """End every process of a cgroup; does nothing on kernels before 5.14."""
    with contextlib.suppress(OSError):
        (cgroup / "cgroup.kill").write_text("1", encoding="ascii")


def remove_cgroup(cgroup: Path) -> None:
    """Remove a cgroup that holds no process."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()


def _own_cgroup(process: Path = PROCESS, *, controller: str = "") -> Path | None:
    """Return the folder of a process' cgroup in the hierarchy of a version 1 controller.

    Without a controller, return its cgroup of version 2.
    """
    lines = (line.split(":", 2) for line in _lines(process / "cgroup"))
    own = next((path for _, names, path in lines if controller in names.split(",")), None)
    if own is None:
        return None
    for line in _lines(process / "mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if (kind == "cgroup" and controller in options.split(",")) or (
            kind == "cgroup2" and not controller
        ):
            root, mount_point = before.split()[3:5]
            return Path(mount_point) / os.path.relpath(own, root)
    return None


def _upwards(folder: Path | None, *, holding: str) -> Iterator[Path]:
    """Yield a cgroup and its ancestors: the folders that hold the file of a cgroup."""
    while folder is not None and (folder / holding).exists():
        yield folder
        folder = folder.parent


def _droppable(cgroup: Path, name: str) -> int:
    """Return the bytes of file pages that were not used recently."""
    counts = (line.split() for line in _lines(cgroup / "memory.stat"))
    return next((int(count) for key, count in counts if key == name), 0)


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
