"""Detects whether the kernel has just killed a process because memory ran out."""

from __future__ import annotations

from pathlib import Path


class MemoryWatch:
    """Compares the kernel's count of out-of-memory kills before and after a rank's first failure.

    The count covers the whole machine. The interval is short, so a kill in another job is unlikely.
    If the count cannot be read, `ran_out` stays False.
    """

    def __init__(self, vmstat: Path = Path("/proc/vmstat")) -> None:
        self._vmstat = vmstat
        self._before = self._count()
        self.ran_out = False
        """Whether the count rose just before or after the first abnormal exit."""

    def poll(self, *, failed: bool) -> None:
        """Read the count; `failed` states whether a rank has already exited abnormally."""
        count = self._count()
        if failed:
            self.ran_out |= count > self._before
        else:
            self._before = count

    def _count(self) -> int:
        try:
            lines = self._vmstat.read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
