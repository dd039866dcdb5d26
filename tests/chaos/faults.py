"""The faults, each with what it does to a running job and what becomes of the job."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.chaos.case import Case, Predicted, silence
from tests.chaos.cluster import API, BROKER, LEASE_SECONDS, SCHEDULER, STANDBY
from tests.e2e.control_plane import wait_for

AWAY = 8.0
"""Seconds for which a part is away: more than a supervisor's longest pause between two tries."""
LONG = LEASE_SECONDS + 5
"""Seconds after which a lease would have run out."""

Strike = Callable[[Case], None]


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    text: str
    """What happens, for the table of docs/chaos.md."""
    strike: Strike
    predicted: Predicted
    retry: dict[str, float]


FAULTS: dict[str, Fault] = {}


def fault(
    text: str, *, attempts: int = 1, retries_used: int = 0, **retry: float
) -> Callable[[Strike], Strike]:
    """Register a fault under the name of its function.

    Args:
        text: what happens.
        attempts: attempts of the job in the end.
        retries_used: retries of its budget that are used up.
        retry: fields of the job's section `retry`.
    """

    def register(strike: Strike) -> Strike:
        predicted = Predicted(attempts, retries_used=retries_used)
        FAULTS[strike.__name__] = Fault(strike.__name__, text, strike, predicted, retry)
        return strike

    return register


# ---- the control plane ---------------------------------------------------------------------------


@fault(f"`kill -9` of the API server; it is back after {AWAY:g} s")
def api_killed(case: Case) -> None:
    api = case.cluster.parts[API]
    api.kill()
    case.progress()
    silence(AWAY)
    api.start()


@fault(f"SIGSTOP of the API server for {LONG:g} s")
def api_paused(case: Case) -> None:
    with case.held():
        _paused(LONG, case.cluster.parts[API].pid)


@fault("`kill -9` of the leading scheduler while a job waits; a standby takes over")
def leader_killed(case: Case) -> None:
    case.cluster.parts[SCHEDULER].kill()
    case.submit_another()
    _wait_until_placed(case)
    case.cluster.parts[SCHEDULER].start()


@fault("`kill -9` of both schedulers; they are back later")
def schedulers_killed(case: Case) -> None:
    for name in (SCHEDULER, STANDBY):
        case.cluster.parts[name].kill()
    case.submit_another()
    case.progress()
    silence(AWAY)
    for name in (SCHEDULER, STANDBY):
        case.cluster.parts[name].start()


@fault(f"SIGSTOP of both schedulers for {LONG:g} s")
def schedulers_paused(case: Case) -> None:
    pids = [case.cluster.parts[name].pid for name in (SCHEDULER, STANDBY)]
    with case.held():
        _paused(LONG, *pids)


@fault(f"the database is locked by another process for {AWAY:g} s")
def database_locked(case: Case) -> None:
    with sqlite3.connect(case.cluster.root / "state" / "trainyard.db", timeout=30) as connection:
        connection.execute("BEGIN IMMEDIATE")
        case.progress()
        silence(AWAY)
        connection.rollback()


# ---- the broker ----------------------------------------------------------------------------------


@fault(f"the broker is away for {AWAY:g} s while a job waits for its launch")
def broker_killed(case: Case) -> None:
    broker = case.cluster.parts[BROKER]
    broker.kill()
    case.submit_another()
    case.progress()
    silence(AWAY)
    broker.start()


@fault(f"SIGSTOP of the broker for {LONG:g} s while a job waits for its launch")
def broker_hung(case: Case) -> None:
    with case.held():
        case.submit_another()
        _paused(LONG, case.cluster.parts[BROKER].pid)


@fault("all data of the broker is lost while the workers are paused")
def broker_flushed(case: Case) -> None:
    with _workers_paused(case), redis.Redis.from_url(case.cluster.broker_url) as client:
        case.submit_another()
        _wait_until_placed(case)
        client.flushall()


@fault("every launch message comes three times")
def messages_doubled(case: Case) -> None:
    with _workers_paused(case), redis.Redis.from_url(case.cluster.broker_url) as client:
        case.submit_another()
        _wait_until_placed(case)

        def copied() -> bool:
            lists = {key: client.lrange(key, 0, -1) for key in client.scan_iter(_type="list")}
            for key, messages in lists.items():
                client.rpush(key, *messages, *messages)
            return bool(lists)

        wait_for(copied, "launch message in the broker")


# ---- a node's programs ---------------------------------------------------------------------------


@fault("`kill -9` of a worker; it is started again")
def worker_killed(case: Case) -> None:
    worker = case.nodes()[0].worker
    worker.kill()
    case.progress()
    worker.start()


@fault(f"SIGSTOP of a worker for {LONG:g} s")
def worker_paused(case: Case) -> None:
    with case.held():
        _paused(LONG, case.nodes()[1].worker.pid)


@fault("`kill -9` of the supervisor of rank 0", attempts=2, retries_used=1)
def supervisor_killed(case: Case) -> None:
    os.kill(case.run(0).supervisor_pid(), signal.SIGKILL)


@fault("`kill -9` of the supervisor of rank 1", attempts=2, retries_used=1)
def second_supervisor_killed(case: Case) -> None:
    os.kill(case.run(1).supervisor_pid(), signal.SIGKILL)


@fault(f"SIGSTOP of a supervisor for {LONG:g} s: its lease runs out, and comes back")
def supervisor_paused(case: Case) -> None:
    _paused(LONG, case.run(1).supervisor_pid())


@fault("`kill -9` of torchrun", attempts=2, retries_used=1)
def torchrun_killed(case: Case) -> None:
    os.kill(_torchrun(case), signal.SIGKILL)


@fault(f"SIGSTOP of torchrun for {LONG:g} s")
def torchrun_paused(case: Case) -> None:
    _paused(LONG, _torchrun(case))


@fault("`kill -9` of rank 0", attempts=2, retries_used=1)
def first_rank_killed(case: Case) -> None:
    os.kill(case.run(0).rank_pid(0), signal.SIGKILL)


@fault("`kill -9` of rank 1", attempts=2, retries_used=1)
def second_rank_killed(case: Case) -> None:
    os.kill(case.run(1).rank_pid(1), signal.SIGKILL)


@fault("a rank aborts", attempts=2, retries_used=1)
def rank_aborted(case: Case) -> None:
    os.kill(case.run(1).rank_pid(1), signal.SIGABRT)


@fault(f"SIGSTOP of rank 0 for {LONG:g} s")
def first_rank_paused(case: Case) -> None:
    _paused(LONG, case.run(0).rank_pid(0))


# ---- machines and cables -------------------------------------------------------------------------


@fault(
    "`kill -9` of every process of a node at once; its worker is started again",
    attempts=2,
    retries_used=1,
)
def node_killed(case: Case) -> None:
    node = case.nodes()[1]
    node.worker.kill_all()
    node.worker.start()


@fault(f"a machine has no network for {LONG:g} s")
def node_cut(case: Case) -> None:
    machine = case.nodes()[1].machine
    machine.cut()
    silence(LONG)
    machine.join()


@fault(f"a machine hears nothing for {LONG:g} s, and is heard")
def node_deaf(case: Case) -> None:
    _filtered(case, "input", LONG)


@fault(f"a machine is not heard for {LONG:g} s, and hears")
def node_mute(case: Case) -> None:
    _filtered(case, "output", LONG)


@fault(f"a machine loses 30 % of all packets, in both directions, for {LONG:g} s")
def packets_lost(case: Case) -> None:
    machine = case.nodes()[1].machine
    for hook in ("input", "output"):
        machine.drop(hook, "numgen", "random", "mod", "100", "<", "30")
    silence(LONG)
    machine.join()


@fault(f"the control plane has no network for {LONG:g} s")
def control_plane_cut(case: Case) -> None:
    machine = case.cluster.parts[API].machine
    machine.cut()
    case.progress()
    silence(LONG)
    machine.join()


# ---- storage -------------------------------------------------------------------------------------


@fault("the storage of checkpoints is full, until somebody clears it")
def storage_full(case: Case) -> None:
    filler = case.cluster.checkpoints / "filler"
    _fill(filler)
    wait_for(lambda: _has_event(case, "save_failed"), "save that failed")
    filler.unlink()


@fault(f"the disk of a node is full for {AWAY:g} s")
def node_disk_full(case: Case) -> None:
    filler = case.nodes()[0].data / "filler"
    with case.held():
        _fill(filler)
    silence(AWAY)
    filler.unlink()


def _fill(filler: Path) -> None:
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 65_536)
            file.flush()


def _paused(seconds: float, *pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    silence(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def _workers_paused(case: Case) -> Iterator[None]:
    workers = [node.worker.pid for node in case.cluster.nodes.values()]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)


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


def _filtered(case: Case, hook: str, seconds: float) -> None:
    machine = case.nodes()[1].machine
    machine.drop(hook)
    silence(seconds)
    machine.join()


def _has_event(case: Case, kind: str) -> bool:
    return any(event.kind == kind for event in case.cluster.yard.events(case.job_id))


def _wait_until_placed(case: Case) -> None:
    yard = case.cluster.yard
    wait_for(
        lambda: all(yard.job(job_id).state != "queued" for job_id in case.others),
        "placement of the other jobs",
    )
