"""The contract of a launcher, in its own process: a launcher ends every descendant.

`contract.py SCENARIO LAUNCHER RUN`; an assertion that fails is the exit code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.worker.conftest import processes_of, wait_for
from tests.worker.launchers.process_launcher import STAND_IN, launcher_of
from tests.worker.outer_launch import OUTER
from tests.worker.stand_in import DAEMON
from trainyard.run.failures import Failure
from worker.launchers.base import Launcher, Observation, Share
from worker.node.node_store import WorkerRun
from worker.node.process_identity import has_ended
from worker.node.process_tree import MARKER, NODE_MARKER, become_subreaper


def ends_well(share: Share, launcher: Launcher) -> None:
    """Ranks start, run in the environment of the contract, and end one by one."""
    before = launcher.observe()
    assert (before.pids, before.pidfds, before.exits) == ({}, {}, ())
    assert not before.started
    assert not before.ended
    assert not before.over
    assert not before.settled, "every rank has yet to begin"
    check = launcher.prepare()
    assert not isinstance(check, Failure)
    assert str(share.run.root) in check
    launcher.start()
    over = until(launcher, lambda seen: seen.ended)
    assert over.over
    assert over.settled
    assert over.failure is None
    assert not over.failed
    assert over.pidfds == {}
    ends = [(end.rank, end.pid) for end in sorted(over.exits, key=lambda end: end.rank)]
    assert ends == [(rank, over.pids[rank]) for rank in share.ranks]
    assert {(end.exit_code, end.signal) for end in over.exits} == {(0, None)}
    world_size = str(sum(share.sizes))
    for local, rank in enumerate(share.ranks):
        lines = Path(share.run.log(rank)).read_text().splitlines()
        begins = f"rank {rank} of {world_size} begins"
        assert begins in lines, "both outputs of a rank are in its log"
        environment = json.loads(next(line for line in lines if line.startswith("{")))
        own = {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": world_size}
        own |= {MARKER: share.launch.attempt_id, NODE_MARKER: share.launch.node}
        assert own.items() <= environment.items()
        assert share.environment.items() <= environment.items()
        assert not OUTER.items() & environment.items(), "of another launch"
    for _ in range(2):
        launcher.stop()  # which finds nothing


def is_killed(share: Share, launcher: Launcher) -> None:
    """A signal to a rank is recorded with its time; `stop` ends the others and their children."""
    launcher.start()
    running = until(launcher, lambda seen: seen.settled and seen.started)
    assert set(running.pids) == set(running.pidfds) == {0, 1}
    assert not any(map(has_ended, running.pidfds.values()))
    assert not running.ended
    wait_for(lambda: all(map(has_daemon, logs(share))), "a daemon of each rank")
    killed_at = time.time()
    os.kill(running.pids[1], signal.SIGKILL)
    failed = until(launcher, lambda seen: seen.failed)
    first = failed.exits[0]
    assert (first.rank, first.pid) == (1, running.pids[1])
    assert (first.exit_code, first.signal) == (None, "SIGKILL")
    assert abs(first.time - killed_at) < 2
    launcher.stop()
    assert marked(share) == []
    last = until(launcher, lambda seen: not seen.pidfds)
    assert last.exits[0] == first
    assert last.pids == running.pids


def is_left(share: Share, launcher: Launcher) -> None:
    """The process that started the ranks ends; another process's launcher ends the remains."""
    if os.fork() == 0:
        launcher.start()
        until(launcher, lambda seen: seen.settled and seen.started)
        wait_for(lambda: all(map(has_daemon, logs(share))), "a daemon of each rank")
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    # This process is no subreaper here: the daemons are no descendants of it.
    assert len(marked(share)) >= 2, "the daemons"
    launcher.stop()
    assert marked(share) == []
    seen = launcher.observe()
    assert seen.pidfds == {}
    assert not seen.ended, "this process has started nothing"


def until(launcher: Launcher, holds: Callable[[Observation], bool]) -> Observation:
    def look() -> Observation | None:
        seen = launcher.observe()
        return seen if holds(seen) else None

    return wait_for(look, "observation")


def logs(share: Share) -> list[Path]:
    return [Path(share.run.log(rank)) for rank in share.ranks]


def has_daemon(log: Path) -> bool:
    return log.exists() and DAEMON in log.read_text()


def marked(share: Share) -> list[int]:
    return processes_of(share.launch.attempt_id, share.launch.node)


SCENARIOS = {"succeed": ends_well, "brood": is_killed, "left": is_left}

if __name__ == "__main__":
    scenario, kind, folder = sys.argv[1:]
    if scenario != "left":
        become_subreaper()
    attempt_share = Share.read(WorkerRun(Path(folder)))
    behaviour = "brood" if scenario == "left" else scenario
    made = launcher_of(kind, (*STAND_IN, behaviour))(attempt_share)
    SCENARIOS[scenario](attempt_share, made)
