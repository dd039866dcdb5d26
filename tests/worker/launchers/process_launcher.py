"""A launcher of plain processes, and the choice between it and torchrun."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trainyard.run.records import RankExit
from worker.launchers.base import Launcher, LauncherFactory, Observation, Share
from worker.launchers.program_launcher import launcher_for
from worker.launchers.rank_environment import rank_environment
from worker.launchers.torchrun import TorchrunLauncher
from worker.launchers.warm.fork_client import PRELOADED, Forkserver
from worker.launchers.warm.warm_launcher import WarmLauncher
from worker.node.process_tree import become_subreaper
from worker.warm.idle import import_for_ranks

STAND_IN = (sys.executable, str(Path(__file__).parents[1] / "stand_in.py"))
STAND_IN_MODULE = "tests.worker.stand_in"

PROCESSES, TORCHRUN, PROGRAM, WARM = "processes", "torchrun", "program", "warm"


class ProcessLauncher:
    """Starts each rank as a child of the supervisor: no torchrun, rank wrapper or rank files."""

    def __init__(self, share: Share, *, trainer: Sequence[str]) -> None:
        self._share = share
        self._trainer = trainer
        self._pids: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        self._exits: dict[int, RankExit] = {}

    checks_alongside = False

    def prepare(self) -> list[str]:
        return [*self._trainer, "check", str(self._share.run.root)]

    def start(self, *, check: Sequence[str] = ()) -> None:
        assert not check
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


class OnlyWarmLauncher(WarmLauncher):
    """Fails if the ranks are not forked."""

    def start(self, *, check: Sequence[str] = ()) -> int | None:
        pid = super().start(check=check)
        assert self._wrappers is not None, f"cold: {self._cold.manner}"
        return pid


def warm_launcher(trainer: Sequence[str]) -> LauncherFactory:
    """Import the ranks' modules, and fork a forkserver, like the idle process of a node."""
    module = PRELOADED
    if tuple(trainer[: len(STAND_IN)]) == STAND_IN:
        module = STAND_IN_MODULE  # as `python -m` the words of the command are those of the module
        trainer = (sys.executable, "-m", module, *trainer[len(STAND_IN) :])
    variables, seen = dict(os.environ), rank_environment()
    opened = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    imported = import_for_ranks(module, Path.cwd(), kept=opened)
    become_subreaper()
    server = Forkserver.start(imported, seen)
    os.environ.clear()
    os.environ.update(variables)
    return lambda share: OnlyWarmLauncher(share, server, trainer=trainer)


LAUNCHERS: dict[str, Callable[..., Launcher]] = {
    PROCESSES: ProcessLauncher,
    TORCHRUN: TorchrunLauncher,
}


def launcher_of(kind: str, trainer: Sequence[str]) -> LauncherFactory:
    """Return the factory of a launcher of this kind for ranks that run a command."""
    if kind == PROGRAM:
        return launcher_for
    return partial(LAUNCHERS[kind], trainer=trainer)
