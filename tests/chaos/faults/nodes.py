"""Faults of a node's programs: worker, supervisor, torchrun, ranks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.case import Case, silence
from tests.chaos.conditions import paused
from tests.chaos.fault import LONG, fault
from tests.e2e.control_plane import wait_for
from trainyard.run.failures import FailureReason

HANG_SECONDS = 20.0
LOCKED_SECONDS, UNLOCKED_SECONDS = 0.1, 0.01
"""Turns in which a save gets no lock, and gets it. The stand-in commits within a millisecond, so
most of the time is locked; the trainer looks each 50 ms whether the lock is free."""


@fault("`kill -9` of a worker; it is started again")
def worker_killed(case: Case) -> None:
    worker = case.nodes()[0].worker
    worker.kill()
    case.progress()
    worker.start()


@fault(f"SIGSTOP of a worker for {LONG:g} s")
def worker_paused(case: Case) -> None:
    with case.held(), paused(case.nodes()[1].worker.pid):
        silence(LONG)


@fault("`kill -9` of the supervisor of rank 0", attempts=2, retries_used=1)
def supervisor_killed(case: Case) -> None:
    os.kill(case.run(0).supervisor_pid(), signal.SIGKILL)


@fault("`kill -9` of the supervisor of rank 1", attempts=2, retries_used=1)
def second_supervisor_killed(case: Case) -> None:
    os.kill(case.run(1).supervisor_pid(), signal.SIGKILL)


@fault("`kill -9` of both supervisors at once", attempts=2, retries_used=1)
def supervisors_killed(case: Case) -> None:
    for pid in [case.run(node).supervisor_pid() for node in (0, 1)]:
        os.kill(pid, signal.SIGKILL)


@fault(f"SIGSTOP of a supervisor for {LONG:g} s: its lease runs out, and comes back")
def supervisor_paused(case: Case) -> None:
    with paused(case.run(1).supervisor_pid()):
        silence(LONG)


@fault("`kill -9` of a supervisor while a checkpoint is committed", attempts=2, retries_used=1)
def supervisor_killed_in_save(case: Case) -> None:
    with _save_held(case):
        os.kill(case.run(0).supervisor_pid(), signal.SIGKILL)


@fault("`kill -9` of torchrun", attempts=2, retries_used=1)
def torchrun_killed(case: Case) -> None:
    os.kill(_torchrun(case), signal.SIGKILL)


@fault(f"SIGSTOP of torchrun for {LONG:g} s")
def torchrun_paused(case: Case) -> None:
    with paused(_torchrun(case)):
        silence(LONG)


@fault("`kill -9` of rank 0", attempts=2, retries_used=1)
def first_rank_killed(case: Case) -> None:
    os.kill(case.run(0).rank_pid(0), signal.SIGKILL)


@fault("`kill -9` of rank 1", attempts=2, retries_used=1)
def second_rank_killed(case: Case) -> None:
    os.kill(case.run(1).rank_pid(1), signal.SIGKILL)


@fault("`kill -9` of rank 0 while it commits a checkpoint", attempts=2, retries_used=1)
def rank_killed_in_save(case: Case) -> None:
    with _save_held(case):
        os.kill(case.run(0).rank_pid(0), signal.SIGKILL)


@fault("a rank aborts", attempts=2, retries_used=1)
def rank_aborted(case: Case) -> None:
    os.kill(case.run(1).rank_pid(1), signal.SIGABRT)


@fault(f"SIGSTOP of rank 0 for {LONG:g} s")
def first_rank_paused(case: Case) -> None:
    with paused(case.run(0).rank_pid(0)):
        silence(LONG)


@fault(
    f"SIGSTOP of rank 1: after {HANG_SECONDS:g} s the attempt ends as a hang that names rank 1",
    attempts=2,
    retries_used=1,
    guard={"hang_seconds": HANG_SECONDS},
)
def rank_hangs(case: Case) -> None:
    late = case.nodes()[1].name
    os.kill(case.run(1).rank_pid(1), signal.SIGSTOP)
    failure = case.failure()
    assert failure.reason == FailureReason.HANG, failure
    if not case.cluster.setup.stand_in:  # which records no collectives
        assert (failure.rank, failure.node) == (1, late), failure
        assert f"rank 1 on {late} did not arrive" in failure.message, failure.message


@contextlib.contextmanager
def _save_held(case: Case) -> Iterator[None]:
    """Hold a save of the first attempt right before its commit while the block runs."""
    job = case.cluster.checkpoints / case.job_id

    def uncommitted(file: str = "") -> bool:
        """Return whether a checkpoint has no marker yet, and has this file."""
        steps = [folder for folder in job.glob("a1/step-*") if (folder / file).exists()]
        return any(not (folder / "COMMITTED").exists() for folder in steps)

    with (job / "FENCE.lock").open("ab") as lock:

        def begun() -> bool:
            # The trainer takes the lock before it makes the folder of a save, too: a lock that is
            # held all the time would hold the save there.
            fcntl.flock(lock, fcntl.LOCK_EX)
            silence(LOCKED_SECONDS)
            if uncommitted():
                return True
            fcntl.flock(lock, fcntl.LOCK_UN)
            return False

        wait_for(begun, "save under way", every=UNLOCKED_SECONDS)
        wait_for(lambda: uncommitted("manifest.json"), "save that waits for its commit")
        yield


def _torchrun(case: Case) -> int:
    """Return the process id of the torchrun of rank 0: the parent of the rank's wrapper."""
    pid = case.run(0).rank_pid(0)
    while "torch.distributed.run" not in _command_line(pid):
        pid = _parent(pid)
    return pid


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
