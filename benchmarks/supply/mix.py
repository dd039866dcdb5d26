"""The input of a supply run: the jobs of the queue, and the sources with their habits."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.protocol.node_sources.messages import SourceKind, SourceLimits

ROOT = "1c8e1d0a-98a5-4f5f-9a51-0d6f9a3a7a10"
"""UUID of the storage that all sources' nodes share."""
STEPS = 100
"""Steps of each job."""
SIZES = (1, 2, 4, 8, 16, 32)
RARITY = 0.7
"""The frequency of a size is its power of -0.7: large jobs are few, but most of the work."""
MEDIAN_SECONDS, SIGMA, LONGEST_SECONDS = 480.0, 1.2, 2 * 3600.0
"""Parameters of the log-normal duration of a job at its own size."""
ELASTIC = 1 / 3
"""Share of elastic jobs among those of four slots or more: a quarter of their size to twice it."""
AT_ONCE = 0.6
"""Share of the jobs that are queued at the start; the others arrive at random times."""
ARRIVE_WITHIN = 2 * 3600.0
"""Time in which 500 jobs arrive; fewer arrive in a shorter time."""
CANCELLED = 0.04
"""Share of the jobs that a person cancels, up to half an hour after their arrival."""


@dataclass(frozen=True)
class MixedJob:
    """A job of the queue."""

    name: str
    world_size: int
    slot_seconds: float
    """Slots times seconds of its training, on any number of slots."""
    arrives_at: float
    """Seconds since the start."""
    cancelled_at: float | None = None
    """When a person cancels it, if it has not ended."""
    is_elastic: bool = False
    priority: int = 0

    def spec(self) -> Mapping[str, Any]:
        """Return its spec as submitted by a person."""
        resources: dict[str, Any] = {"world_size": self.world_size, "priority": self.priority}
        if self.is_elastic:
            resources["min_world_size"] = self.world_size // 4
            resources["max_world_size"] = self.world_size * 2
        training = {"steps": STEPS, "global_batch_size": 64, "micro_batch_size": 1}
        return {"name": self.name, "resources": resources, "training": training}


@dataclass(frozen=True)
class Habits:
    """An engine's behaviour: times in seconds, and probabilities per allocation or call."""

    wait: tuple[float, float]
    """Shortest and longest wait in its queue, log-uniform."""
    boot: tuple[float, float]
    """Time from the start of an allocation to a pilot's first call."""
    machines: int
    submit_fails: float = 0.02
    list_fails: float = 0.02
    dies_at_start: float = 0.03
    is_requeued: float = 0.0
    """The whole allocation is preempted, and waits again."""
    is_evicted: float = 0.0
    """One node is removed, and another replaces it."""
    crashes: float = 0.0
    """One node is lost for good, and silent until the engine's proof two minutes later."""
    is_forgotten: float = 0.02
    """The engine does not list it for ten minutes."""
    unproved: float = 0.0
    """It ends without the engine's proof: a person ends the request by name."""


@dataclass(frozen=True)
class SimulatedSource:
    """A source and its engine."""

    name: str
    kind: SourceKind
    slots: int
    limits: SourceLimits
    request_seconds: float | None
    leave_seconds: float
    habits: Habits


SOURCES: Sequence[SimulatedSource] = (
    SimulatedSource(
        name="slurm",
        kind="slurm",
        slots=8,
        limits=SourceLimits(pending=4, nodes=12, nodes_per_request=4),
        request_seconds=1.5 * 3600.0,
        leave_seconds=120.0,
        habits=Habits((20.0, 1500.0), (5.0, 30.0), 11, is_requeued=0.05, unproved=0.02),
    ),
    SimulatedSource(
        name="kubernetes",
        kind="kubernetes",
        slots=4,
        limits=SourceLimits(pending=6, nodes=10, nodes_per_request=8, node_hours_per_month=24),
        request_seconds=3600.0,
        leave_seconds=60.0,
        habits=Habits((10.0, 180.0), (10.0, 40.0), 10, is_evicted=0.08),
    ),
    SimulatedSource(
        name="ssh",
        kind="ssh",
        slots=8,
        limits=SourceLimits(pending=2, nodes=6, nodes_per_request=6),
        request_seconds=None,
        leave_seconds=60.0,
        habits=Habits((1.0, 3.0), (5.0, 20.0), 6, crashes=0.04, is_forgotten=0.0),
    ),
)


def mix(count: int, seed: int) -> Sequence[MixedJob]:
    """Return jobs by arrival: small and large, short and long, elastic ones among them.

    Args:
        count: jobs.
        seed: seed of all random numbers.
    """
    chance = random.Random(seed)
    within = ARRIVE_WITHIN * count / 500
    weights = [size**-RARITY for size in SIZES]
    found = []
    for number in range(count):
        size = chance.choices(SIZES, weights)[0]
        seconds = min(MEDIAN_SECONDS * chance.lognormvariate(0.0, SIGMA), LONGEST_SECONDS)
        arrives = 0.0 if chance.random() < AT_ONCE else chance.uniform(0.0, within)
        ends = arrives + chance.uniform(0.0, 1800.0) if chance.random() < CANCELLED else None
        found.append(
            MixedJob(
                name=f"job-{number:03}",
                world_size=size,
                slot_seconds=size * seconds,
                arrives_at=arrives,
                cancelled_at=ends,
                is_elastic=size >= 4 and chance.random() < ELASTIC,
                priority=50 if chance.random() < 0.1 else 0,
            )
        )
    return sorted(found, key=lambda job: job.arrives_at)
