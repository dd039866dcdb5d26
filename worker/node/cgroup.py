"""A cgroup (version 2) for the processes of an attempt, where the worker may make one.

What its processes start stays in it whatever they do, and the kernel ends all of it at once. Where
none can be had, subreaper, parent-death signals and the environment's mark do the same work.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
