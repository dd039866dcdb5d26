"""Simulated engines behind `NodeSource`: queues, time limits, faults, and proofs of ends."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.supply.events import Timeline
from benchmarks.supply.mix import SimulatedSource
from provisioner.base import EngineListing, SourceError, Submission
from trainyard.protocol.node_sources.messages import EngineJob, EngineNode, EngineState

FORGOTTEN_SECONDS = 600.0
REMEMBERED_SECONDS = 300.0
"""Time for which an engine lists an ended job."""
PROOF_SECONDS = 120.0
"""Time from the crash of a machine to the engine's proof of it."""
END_SECONDS = (2.0, 8.0)
"""Time from the end or the cancel of an allocation to its last process."""


@dataclass
class Life:
    """One run of a pilot."""

    index: int
    instance: str
    secret: str
    gone: bool = False


class Machines(Protocol):
    """The machines on which pilots run."""

    def boot(self, source: str, request_id: str, life: Life) -> None:
        """Start a pilot, which calls the server."""

    def kill(self, life: Life) -> None:
        """End all processes of a pilot immediately."""

    def is_busy(self, life: Life) -> bool:
        """Return whether an attempt holds slots of a pilot's node."""


@dataclass
class Allocation:
    """A job of the engine."""

    request_id: str
    ref: str
    nodes: int
    seconds: float | None
    secrets: Sequence[str]
    ready_at: float
    """Time of its turn; it then starts as soon as machines are free."""
    state: EngineState = "pending"
    gone: bool = False
    reason: str = "Priority"
    started_at: float | None = None
    ends_at: float | None = None
    ended_at: float | None = None
    hidden_until: float = 0.0
    lives: list[Life] = field(default_factory=list)

    def living(self) -> list[Life]:
        """Return the pilot runs that have not ended."""
        return [life for life in self.lives if not life.gone]


class SimulatedEngine:
    """One engine. All times are virtual, and the seed determines all random numbers."""

    def __init__(
        self, source: SimulatedSource, timeline: Timeline, *, machines: Machines, seed: int
    ) -> None:
        self.source = source
        self._habits = source.habits
        self._timeline = timeline
        self._machines = machines
        self._chance = random.Random(f"{seed} {source.name}")
        self.allocations: dict[str, Allocation] = {}
        """Every job that the engine ever had, by request."""
        self.cut_off = 0
        """Nodes that still had attempts at the end of their allocation's time."""

    def node_hours(self) -> float:
        """Return the node-hours of the ended allocations, each in its last run."""
        return sum(
            each.nodes * (each.ended_at - each.started_at) / 3600.0
            for each in self.allocations.values()
            if each.started_at is not None and each.ended_at is not None
        )

    # ---- the calls of a provisioner -----------------------------------------------------------

    def submit(self, submission: Submission) -> str:
        """Queue a job unless it exists."""
        known = self.allocations.get(submission.request_id)
        if known is not None:
            return known.ref
        if self._happens(self._habits.submit_fails):
            raise SourceError("the engine did not answer within 30 s")
        shape, now = submission.shape, self._timeline.seconds
        if self.source.kind == "ssh" and self._free() < shape.nodes:
            raise SourceError(f"{self._free()} machines are free, {shape.nodes} are needed")
        allocation = Allocation(
            request_id=submission.request_id,
            ref=str(1000 + len(self.allocations)),
            nodes=shape.nodes,
            seconds=submission.seconds,
            secrets=submission.secrets.read_text(encoding="ascii").splitlines(),
            ready_at=now + self._wait(),
        )
        self.allocations[submission.request_id] = allocation
        self._timeline.at(allocation.ready_at, self._start_what_fits)
        return allocation.ref

    def list(self) -> EngineListing:
        """Return the jobs that the engine remembers."""
        if self._happens(self._habits.list_fails):
            raise SourceError("the engine did not answer within 30 s")
        known = filter(self._knows, self.allocations.values())
        return EngineListing([self._described(each) for each in known])

    def status(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        """Return the jobs of these requests that the engine remembers."""
        found = [self.allocations[each] for each in request_ids if each in self.allocations]
        return [self._described(each) for each in found if self._knows(each)]

    def cancel(self, request_id: str) -> None:
        """End a job."""
        allocation = self.allocations.get(request_id)
        if allocation is None:
            return
        if allocation.state == "pending":
            self._end(allocation, "cancelled")
        elif allocation.state == "running":
            self._complete(allocation, "cancelled")

    def explain(self, request_id: str) -> str:
        """Return why a job waits."""
        return self.allocations[request_id].reason if request_id in self.allocations else "unknown"

    # ---- the life of an allocation ------------------------------------------------------------

    def _start_what_fits(self) -> None:
        now = self._timeline.seconds
        waiting = [a for a in self.allocations.values() if a.state == "pending"]
        for each in sorted(waiting, key=lambda a: a.ready_at):
            if each.ready_at > now:
                return
            if each.nodes > self._free():
                each.reason = "Resources"
                return
            self._start(each)

    def _start(self, allocation: Allocation) -> None:
        habits, now = self._habits, self._timeline.seconds
        allocation.state, allocation.reason, allocation.started_at = "running", "", now
        began = len(allocation.lives) // allocation.nodes
        for index in range(allocation.nodes):
            self._boot(allocation, index, f"{allocation.ref}.{began}.{index}")
        if allocation.seconds is not None:
            allocation.ends_at = now + allocation.seconds
        expected = allocation.seconds or 3 * 3600.0
        if self._happens(habits.dies_at_start):
            self._later(allocation, self._chance.uniform(1, 40), self._fail)
        for chance, strike in (
            (habits.is_requeued, self._requeue),
            (habits.is_evicted, self._evict),
            (habits.crashes, self._crash),
            (habits.is_forgotten, self._forget),
        ):
            if self._happens(chance):
                self._later(allocation, self._chance.uniform(60, expected), strike)
        if allocation.seconds is not None:
            self._later(allocation, allocation.seconds, self._run_out)

    def _later(
        self, allocation: Allocation, seconds: float, strike: Callable[[Allocation], None]
    ) -> None:
        """Schedule an event of an allocation; drop it if the present run is over by then."""
        started = allocation.started_at

        def unless_over() -> None:
            if allocation.state == "running" and allocation.started_at == started:
                strike(allocation)

        self._timeline.after(seconds, unless_over)

    def _boot(self, allocation: Allocation, index: int, instance: str) -> None:
        life = Life(index, instance, allocation.secrets[index])
        allocation.lives.append(life)

        def join() -> None:
            if not life.gone:
                self._machines.boot(self.source.name, allocation.request_id, life)

        self._timeline.after(self._chance.uniform(*self._habits.boot), join)

    def _run_out(self, allocation: Allocation) -> None:
        self.cut_off += sum(map(self._machines.is_busy, allocation.living()))
        self._complete(allocation, "TimeLimit")

    def _complete(self, allocation: Allocation, reason: str) -> None:
        allocation.state, allocation.reason = "completing", reason
        seconds = self._chance.uniform(*END_SECONDS)
        self._timeline.after(seconds, lambda: self._end(allocation, reason))

    def _fail(self, allocation: Allocation) -> None:
        self._end(allocation, "NodeFailure")

    def _end(self, allocation: Allocation, reason: str) -> None:
        for life in allocation.living():
            self._kill(life)
        allocation.state, allocation.reason = "ended", reason
        allocation.ended_at = self._timeline.seconds
        allocation.gone = not (allocation.lives and self._happens(self._habits.unproved))
        if not allocation.gone:
            for life in allocation.lives:
                life.gone = False  # without accounting their end is not proved
        self._start_what_fits()

    def _requeue(self, allocation: Allocation) -> None:
        for life in allocation.living():
            self._kill(life)
        # As in Slurm: it is first shown as completing.
        allocation.state, allocation.reason = "completing", "BeginTime"
        allocation.ends_at = None
        seconds = self._chance.uniform(*END_SECONDS)
        allocation.ready_at = self._timeline.seconds + seconds + self._wait()

        def wait() -> None:
            allocation.state = "pending"

        self._timeline.after(seconds, wait)
        self._timeline.at(allocation.ready_at, self._start_what_fits)

    def _evict(self, allocation: Allocation) -> None:
        life = self._chance.choice(allocation.living())
        self._kill(life)
        began = sum(each.index == life.index for each in allocation.lives)
        self._boot(allocation, life.index, f"{allocation.ref}.{began}.{life.index}")

    def _crash(self, allocation: Allocation) -> None:
        life = self._chance.choice(allocation.living())
        self._machines.kill(life)

        def prove(allocation: Allocation) -> None:
            life.gone = True
            if not allocation.living():
                self._end(allocation, "its machine was started anew")

        self._later(allocation, PROOF_SECONDS, prove)

    def _forget(self, allocation: Allocation) -> None:
        allocation.hidden_until = self._timeline.seconds + FORGOTTEN_SECONDS

    def _kill(self, life: Life) -> None:
        life.gone = True
        self._machines.kill(life)

    # ---- what is described --------------------------------------------------------------------

    def _knows(self, allocation: Allocation) -> bool:
        now = self._timeline.seconds
        ended_at = allocation.ended_at
        return now >= allocation.hidden_until and (
            ended_at is None or now < ended_at + REMEMBERED_SECONDS
        )

    def _described(self, each: Allocation) -> EngineJob:
        unix = self._timeline.unix
        return EngineJob(
            request_id=each.request_id,
            ref=each.ref,
            state=each.state,
            gone=each.state == "ended" and each.gone,
            reason=each.reason,
            starts_at=None if each.started_at is None else unix(each.started_at),
            ends_at=None if each.ends_at is None else unix(each.ends_at),
            nodes=tuple(
                EngineNode(
                    index=life.index,
                    instance=life.instance,
                    addresses=("10.0.0.1",),
                    gone=life.gone,
                )
                for life in each.lives
            ),
        )

    def _free(self) -> int:
        busy = ("running", "completing")
        taken = sum(a.nodes for a in self.allocations.values() if a.state in busy)
        return self._habits.machines - taken

    def _wait(self) -> float:
        shortest, longest = self._habits.wait
        return math.exp(self._chance.uniform(math.log(shortest), math.log(longest)))

    def _happens(self, chance: float) -> bool:
        return self._chance.random() < chance
