"""Processor time of the processes of a server, by kind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.control_plane.servers import Process, Store

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Spent:
    """Processor seconds over the time of a block, by kind of process."""

    seconds: dict[str, float] = field(default_factory=dict)

    def each_ms(self, count: int) -> dict[str, float]:
        """Return milliseconds for each of `count` requests."""
        return {kind: round(spent / count * 1000, 2) for kind, spent in self.seconds.items()}


@contextmanager
def spent(opened: Store, **processes: list[Process]) -> Iterator[Spent]:
    """Measure the processor time of processes of the server, and of the database, in a block."""
    pids = {kind: [process.pid for process in of_kind] for kind, of_kind in processes.items()}
    if opened.pid is not None:
        pids["database"] = [opened.pid]
    before = {kind: sum(map(_seconds, each)) for kind, each in pids.items()}
    measured = Spent()
    yield measured
    measured.seconds = {
        kind: sum(map(_seconds, each)) - before[kind] for kind, each in pids.items()
    }


def _seconds(pid: int) -> float:
    """Return the processor time of a process and of all that it started."""
    folder = Path(f"/proc/{pid}")
    # utime, stime, cutime, cstime are fields 14 to 17; the name in parentheses may hold blanks.
    ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:15]
    children = (path.read_text().split() for path in folder.glob("task/*/children"))
    started = sum(_seconds(int(child)) for each in children for child in each)
    return sum(map(int, ticks)) / TICKS + started
