"""Cgroups: limits on the worker itself, and one cgroup (version 2) for each attempt.

Every process started in a cgroup stays there, and the kernel can end all of them in one call.
Without cgroups, the worker relies on the subreaper, on parent-death signals, and on the marks in
the environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

PROCESS = Path("/proc/self")
UNLIMITED_BYTES = 1 << 62
"""Memory limit, in bytes, that means no limit; version 1 has no other notation for this."""


@dataclass(frozen=True)
class CgroupLimits:
    """Limits of this process' cgroups; for each resource the tightest limit."""

    cores: int | None = None
    """CPU quota in whole cores, at least one; None without a quota."""
    memory_bytes: int | None = None
    """Memory limit in bytes; None without a limit."""
    memory_used_bytes: int | None = None
    """Memory in use, in bytes, in the cgroup that sets the memory limit. File pages that the kernel
    can drop do not count.
    """

    def with_quota(self, quota: str, period: str) -> CgroupLimits:
        """Return these limits, with the given CPU quota if that is a number and lower than the
        present quota."""
        if not quota.isdigit() or not period.isdigit():  # `max`, or -1 in version 1: no quota
            return self
        cores = max(1, int(quota) // int(period))
        return replace(self, cores=min(cores, self.cores or cores))

    def with_memory(self, limit: str, used: int) -> CgroupLimits:
        """Return these limits, with the given memory limit if that is a number and lower than the
        present one."""
        if not limit.isdigit() or int(limit) >= (self.memory_bytes or UNLIMITED_BYTES):
            return self
        return replace(self, memory_bytes=int(limit), memory_used_bytes=max(0, used))


def cgroup_limits(cgroup: Path | None = None, *, process: Path = PROCESS) -> CgroupLimits:
    """Return the limits of a version 2 cgroup and its ancestors.

    Without `cgroup`, return the limits of a process' cgroups of versions 1 and 2.

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
    """Return the attempt's cgroup below this process' cgroup; None if it cannot be made.

    Each call returns the same cgroup as long as the worker's own cgroup stays the same.
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
    """End every process of a cgroup; on kernels before 5.14, do nothing."""
    with contextlib.suppress(OSError):
        (cgroup / "cgroup.kill").write_text("1", encoding="ascii")


def remove_cgroup(cgroup: Path) -> None:
    """Remove a cgroup that holds no process any more."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()


def _own_cgroup(process: Path = PROCESS, *, controller: str = "") -> Path | None:
    """Return the folder of a process' cgroup for a version 1 controller.

    Without a controller, return the folder of the version 2 cgroup.
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
    """Yield a cgroup and its ancestors, up to the first folder without the file `holding`."""
    while folder is not None and (folder / holding).exists():
        yield folder
        folder = folder.parent


def _droppable(cgroup: Path, name: str) -> int:
    """Return the size of file pages not used recently, in bytes."""
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
