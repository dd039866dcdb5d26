"""Random combinations of faults: two or three at random times, each for a random while, by seed."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos.case import Case, Predicted
from tests.chaos.cluster import API, BROKER, SCHEDULER, STANDBY, Node
from tests.chaos.conditions import full, paused, send
from tests.chaos.fault import Fault
from tests.e2e.control_plane import Run
from trainyard.run.directory import RunDirectory

WHILES = (1.0, 2.0, 4.0, 14.0)
"""Seconds that a fault may last: shorter and longer than a lease."""
ON_NODES = ("worker", "supervisor", "ranks", "network of a node", "disk of a node")
"""Targets of which each node has one."""

Apply = Callable[[Case, Node], AbstractContextManager[None]]


@dataclass(frozen=True)
class Disturbance:
    """A fault that begins and ends whatever else happens."""

    name: str
    target: str
    """What it strikes: a combination has one fault of each."""
    attempts: int
    """Most attempts that it may cost."""
    apply: Apply


DISTURBANCES: dict[str, Disturbance] = {}


def disturbance(
    target: str, *, attempts: int = 0
) -> Callable[[Callable[..., Iterator[None]]], Apply]:
    """Register a disturbance under the name of its function."""

    def register(function: Callable[..., Iterator[None]]) -> Apply:
        apply = contextlib.contextmanager(function)
        name = function.__name__
        DISTURBANCES[name] = Disturbance(name, target, attempts, apply)
        return apply

    return register


@dataclass(frozen=True)
class Timed:
    """A disturbance at its time."""

    disturbance: Disturbance
    node: int
    """Which node it strikes, where it strikes one."""
    at: float
    """Seconds after the submission."""
    seconds: float
    """How long it lasts."""

    def __str__(self) -> str:
        where = f" of n{self.node + 1}" if self.disturbance.target in ON_NODES else ""
        name = f"{self.disturbance.name}{where}"
        return f"{name} at {self.at:.1f} s for {self.seconds:g} s"


RETRIED = ["hang", "node_lost", "preempted", "launch_error", "trainer_error", "checkpoint_error"]
"""The storage may be full when an attempt begins, which fails it."""


def drawn(seed: int, number: int, *, latest: float) -> Fault:
    """Draw a combination: the same seed and number give the same one.

    Args:
        seed: the seed of the run.
        number: which of its combinations.
        latest: seconds after the submission at which the last fault may begin.
    """
    random = Random(f"{seed}/{number}")
    targets = sorted({each.target for each in DISTURBANCES.values()})
    timed = []
    for target in random.sample(targets, random.choice((2, 3))):
        choices = [each for each in DISTURBANCES.values() if each.target == target]
        chosen, node = random.choice(choices), random.randrange(3)
        timed.append(Timed(chosen, node, random.uniform(0, latest), random.choice(WHILES)))
    most = 1 + sum(each.disturbance.attempts for each in timed)
    return Fault(
        name=f"random-{seed}-{number}",
        text="; ".join(map(str, timed)),
        strike=lambda case: _strike(case, timed),
        predicted=Predicted(range(1, most + 1), retries_used=None),
        job={"retry": {"max_retries": 10, "backoff_seconds": 1, "on": RETRIED}},
        after_step=0,
    )


def _strike(case: Case, timed: Sequence[Timed]) -> None:
    """Apply all disturbances, and return when the last is over."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(timed)) as threads:
        for done in [threads.submit(_apply, each, case, began) for each in timed]:
            done.result()


def _apply(timed: Timed, case: Case, began: float) -> None:
    time.sleep(max(0.0, began + timed.at - time.monotonic()))
    node = list(case.cluster.nodes.values())[timed.node]
    with timed.disturbance.apply(case, node):
        time.sleep(timed.seconds)


# ---- the control plane ---------------------------------------------------------------------------


@disturbance("api")
def api_killed(case: Case, _: Node) -> Iterator[None]:
    with _killed(case, API):
        yield


@disturbance("api")
def api_paused(case: Case, _: Node) -> Iterator[None]:
    with paused(case.cluster.parts[API].pid):
        yield


@disturbance("schedulers")
def scheduler_killed(case: Case, _: Node) -> Iterator[None]:
    with _killed(case, SCHEDULER):
        yield


@disturbance("schedulers")
def schedulers_killed(case: Case, _: Node) -> Iterator[None]:
    with _killed(case, SCHEDULER, STANDBY):
        yield


@disturbance("schedulers")
def scheduler_paused(case: Case, _: Node) -> Iterator[None]:
    with paused(case.cluster.parts[SCHEDULER].pid):
        yield


@disturbance("broker")
def broker_killed(case: Case, _: Node) -> Iterator[None]:
    with _killed(case, BROKER):
        yield


@disturbance("broker")
def broker_paused(case: Case, _: Node) -> Iterator[None]:
    with paused(case.cluster.parts[BROKER].pid):
        yield


# ---- programs of a node --------------------------------------------------------------------------


@disturbance("worker", attempts=1)
def worker_killed(case: Case, node: Node) -> Iterator[None]:
    with _killed(case, node.name):
        yield


@disturbance("worker")
def worker_paused(_: Case, node: Node) -> Iterator[None]:
    with paused(node.worker.pid):
        yield


@disturbance("worker", attempts=1)
def node_killed(_: Case, node: Node) -> Iterator[None]:
    node.worker.kill_all()
    yield
    node.worker.start()


@disturbance("supervisor", attempts=1)
def supervisor_killed(case: Case, node: Node) -> Iterator[None]:
    for pid in _pids(case, node, "supervisor"):
        send(pid, signal.SIGKILL)
    yield


@disturbance("supervisor")
def supervisor_paused(case: Case, node: Node) -> Iterator[None]:
    with paused(*_pids(case, node, "supervisor")):
        yield


@disturbance("ranks", attempts=1)
def rank_killed(case: Case, node: Node) -> Iterator[None]:
    for pid in _pids(case, node, "rank"):
        send(pid, signal.SIGKILL)
    yield


@disturbance("ranks")
def rank_paused(case: Case, node: Node) -> Iterator[None]:
    with paused(*_pids(case, node, "rank")):
        yield


# ---- network and storage -------------------------------------------------------------------------


@disturbance("network of a node")
def node_cut(_: Case, node: Node) -> Iterator[None]:
    node.machine.cut()
    yield
    node.machine.join()


@disturbance("network of a node")
def node_deaf(_: Case, node: Node) -> Iterator[None]:
    node.machine.drop("input")
    yield
    node.machine.join()


@disturbance("network of a node")
def node_mute(_: Case, node: Node) -> Iterator[None]:
    node.machine.drop("output")
    yield
    node.machine.join()


@disturbance("network of the control plane")
def control_plane_cut(case: Case, _: Node) -> Iterator[None]:
    machine = case.cluster.parts[API].machine
    machine.cut()
    yield
    machine.join()


@disturbance("storage", attempts=5)
def storage_full(case: Case, _: Node) -> Iterator[None]:
    with full(case.cluster.checkpoints):
        yield


@disturbance("disk of a node", attempts=2)
def node_disk_full(_: Case, node: Node) -> Iterator[None]:
    with full(node.data):
        yield


@contextlib.contextmanager
def _killed(case: Case, *names: str) -> Iterator[None]:
    for name in names:
        case.cluster.parts[name].kill()
    yield
    for name in names:
        case.cluster.parts[name].start()


def _pids(case: Case, node: Node, kind: str) -> list[int]:
    """Return the supervisor or the first rank of the job's newest attempt on a node, if any."""
    runs = (node.data / "runs" / case.job_id).glob("*")
    newest = max(runs, key=lambda run: int(run.name), default=Path())
    run = Run(RunDirectory(newest))
    with contextlib.suppress(OSError, ValueError):
        if kind == "supervisor":
            return [run.supervisor_pid()]
        return [run.rank_pid(int(path.stem)) for path in (newest / "ranks").glob("*.start")][:1]
    return []
