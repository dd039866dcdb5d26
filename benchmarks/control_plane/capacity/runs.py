"""One run on one database: the servers, its duration, and the processor time of each process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.control_plane.capacity.load import Lane, Sent, send_from_another_process
from benchmarks.control_plane.servers import PACKAGES, Process, Store

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """Destination and duration of the load."""

    opened: Store
    apis: list[Process]
    seconds: float
    rounds: int

    @property
    def common(self) -> dict[str, Any]:
        """Fields of every line."""
        return {
            "packages": PACKAGES,
            "database": self.opened.kind,
            "api_processes": len(self.apis),
        }


def send(lanes: Sequence[Lane], *, for_seconds: float) -> Sent:
    """Send a load; assert that no request is refused."""
    sent = send_from_another_process(lanes, for_seconds=for_seconds)
    refused = {kind: statuses for kind, statuses in sent.refused.items() if statuses}
    assert not refused, f"the server refused requests: {refused}"
    return sent


@dataclass
class Spent:
    """Processor seconds over the time of a block, by kind of process."""

    seconds: dict[str, float] = field(default_factory=dict)

    def each_ms(self, count: int) -> dict[str, float]:
        """Return milliseconds per request, for `count` requests."""
        return {kind: round(spent / count * 1000, 2) for kind, spent in self.seconds.items()}

    def processors(self, sent: Sent) -> dict[str, float]:
        """Return the average number of processors used by each kind, and by the load."""
        used = self.seconds | {"load": sent.cpu_seconds}
        return {kind: round(spent / sent.wall_seconds, 2) for kind, spent in used.items()}


@contextmanager
def spent(opened: Store, **processes: list[Process]) -> Iterator[Spent]:
    """Measure the processor time of server processes, and of the database, in a block."""
    pids = {kind: [process.pid for process in of_kind] for kind, of_kind in processes.items()}
    if opened.pid is not None:
        pids["database"] = [opened.pid]
    before = {kind: sum(map(processor_seconds, each)) for kind, each in pids.items()}
    measured = Spent()
    yield measured
    measured.seconds = {
        kind: sum(map(processor_seconds, each)) - before[kind] for kind, each in pids.items()
    }


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its children; 0 if it is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        # utime, stime, cutime, cstime are fields 14 to 17; the name in parentheses may hold spaces.
        ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:15]
        children = [path.read_text().split() for path in folder.glob("task/*/children")]
    except (FileNotFoundError, ProcessLookupError):  # a database worker that has just ended
        return 0.0
    started = sum(processor_seconds(int(child)) for each in children for child in each)
    return sum(map(int, ticks)) / TICKS + started
