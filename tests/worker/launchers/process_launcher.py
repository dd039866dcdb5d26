"""A launcher of plain processes, and how a test selects it or torchrun."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trainyard.run.records import RankExit
from worker.launchers.base import Launcher, LauncherFactory, Observation, Share
from worker.launchers.program_launcher import launcher_for
from worker.launchers.torchrun import TorchrunLauncher

PROCESSES, TORCHRUN, PROGRAM = "processes", "torchrun", "program"


class ProcessLauncher:
    """Starts each rank as a child of the supervisor: no torchrun, rank wrapper or rank files."""

    def __init__(self, share: Share, *, trainer: Sequence[str]) -> None:
        self._share = share
        self._trainer = trainer
        self._pids: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        self._exits: dict[int, RankExit] = {}

    def prepare(self) -> list[str]:
        return [*self._trainer, "check", str(self._share.run.root)]

    def start(self) -> None:
        share = self._share
        world = {"WORLD_SIZE": str(sum(share.sizes))}
        for local, rank in enumerate(share.ranks):
            self._pids[rank] = share.processes.spawn(
                [*self._trainer, str(share.run.root)],
                environment=share.environment
                | world
                | {"RANK": str(rank), "LOCAL_RANK": str(local)},
                output=Path(share.run.log(rank)),
            )
            self._pidfds[rank] = os.pidfd_open(self._pids[rank])

    def observe(self) -> Observation:
        for rank, pid in self._pids.items():
            status = self._share.processes.status(pid)
            if status is not None and rank not in self._exits:
                os.close(self._pidfds.pop(rank))
                self._exits[rank] = RankExit(
                    rank=rank,
                    pid=pid,
                    exit_code=status if status >= 0 else None,
                    signal=signal.Signals(-status).name if status < 0 else None,
                    time=time.time(),
                )
        return Observation(
            ranks=len(self._share.ranks),
            pids=dict(self._pids),
            pidfds=dict(self._pidfds),
            exits=tuple(self._exits.values()),
            ended=len(self._exits) == len(self._share.ranks),
        )

    def stop(self) -> None:
        self._share.processes.end()


LAUNCHERS: dict[str, Callable[..., Launcher]] = {
    PROCESSES: ProcessLauncher,
    TORCHRUN: TorchrunLauncher,
}


def launcher_of(kind: str, trainer: Sequence[str]) -> LauncherFactory:
    """Return what makes a launcher of this kind whose ranks run a command."""
    if kind == PROGRAM:
        return launcher_for
    return partial(LAUNCHERS[kind], trainer=trainer)
