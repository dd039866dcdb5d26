"""Fair share and quotas over a simulated cluster: the order by its definition, real placement."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from server.cluster.placement.decide import decide
from server.cluster.placement.demand import Demand, Offer, QueuedJob
from server.cluster.placement.quotas import Quota
from tests.server.cluster.placement.fair_order import Waiting, fair_order

SIZES = (1, 1, 1, 2, 2, 4, 8)
SLOTS = 8
BACKLOG = 20
"""Waiting jobs of each project before each round."""


@dataclass
class Cluster:
    """A cluster on virtual time with waiting jobs of every project."""

    weights: Mapping[str, float]
    seed: int
    max_slots: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 24
    now: float = 0.0
    started: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.free = {f"n{n:02}": set(range(SLOTS)) for n in range(self.nodes)}
        self.waiting: list[Waiting] = []
        self.running: list[tuple[float, str, str, dict[str, set[int]]]] = []
        self.held: Counter[str] = Counter()
        self.slot_seconds = dict.fromkeys(self.weights, 0.0)
        self.number = 0
        self._fill(100)  # enough that the first round leaves some of each project

    def run(self, ends: int, watch: Callable[[], None] = lambda: None) -> None:
        """Repeatedly decide and advance to the next end."""
        for _ in range(ends):
            self._fill(BACKLOG)
            self._place()
            watch()
            end = heapq.heappop(self.running)
            for project, count in self.held.items():
                self.slot_seconds[project] += count * (end[0] - self.now)
            self.now = end[0]
            _, _, project, shares = end
            for node, slots in shares.items():
                self.free[node] |= slots
                self.held[project] -= len(slots)

    def share(self, project: str) -> float:
        """Return a project's share of the held slot-seconds."""
        return self.slot_seconds[project] / sum(self.slot_seconds.values())

    def _fill(self, backlog: int) -> None:
        queued = Counter(job.project for job in self.waiting)
        for project in self.weights:
            for _ in range(backlog - queued[project]):
                self.number += 1
                job = Waiting(
                    id=f"{self.number:08}",
                    project=project,
                    size=self.random.choice(SIZES),
                    queued_at=self.now,
                    lasts=60.0 * self.random.paretovariate(1.5),  # without a finite variance
                )
                self.waiting.append(job)

    def _place(self) -> None:
        online = SLOTS * self.nodes
        largest = {each: min(self.max_slots.get(each, online), online) for each in self.weights}
        order = fair_order(self.waiting, self.held, weights=self.weights, largest=largest)
        queue = [QueuedJob(j.id, j.id, Demand(j.size), project=j.project) for j in order]
        offers = [
            Offer(node, "cpu", SLOTS, tuple(sorted(free)), {"checkpoints": "r"})
            for node, free in self.free.items()
        ]
        quotas = {
            project: Quota(held=self.held[project], max_slots=most)
            for project, most in self.max_slots.items()
        }
        placed = decide(queue, offers, quotas=quotas).placed
        for job in order:
            if job.id not in placed:
                continue
            shares = {share.node: set(share.slots) for share in placed[job.id]}
            for node, slots in shares.items():
                assert slots <= self.free[node]
                self.free[node] -= slots
            self.held[job.project] += job.size
            self.started[job.project] += 1
            self.waits.append(self.now - job.queued_at)
            heapq.heappush(self.running, (self.now + job.lasts, job.id, job.project, shares))
        self.waiting = [job for job in self.waiting if job.id not in placed]


@pytest.mark.parametrize("seed", range(2))
def test_held_slots_are_as_the_weights(seed: int) -> None:
    """Within 5 % of each weight's part, with sizes from 1 to 8 and heavy-tailed durations."""
    weights = {"a": 1.0, "b": 2.0, "c": 3.0}
    cluster = Cluster(weights, seed, nodes=32)
    cluster.run(500)
    for project, weight in weights.items():
        fair = weight / sum(weights.values())
        assert abs(cluster.share(project) - fair) <= 0.05 * fair, (project, cluster.share(project))


@pytest.mark.parametrize("seed", range(2))
def test_a_quota_is_exceeded_at_no_decision_and_the_rest_goes_to_the_others(seed: int) -> None:
    cluster = Cluster({"a": 1.0, "b": 1.0, "c": 1.0}, seed, max_slots={"a": 10, "b": 7})

    def watch() -> None:
        assert cluster.held["a"] <= 10
        assert cluster.held["b"] <= 7

    cluster.run(300, watch)
    assert cluster.held["a"] > 0
    assert cluster.share("c") > 0.8


@pytest.mark.parametrize(("size", "max_slots"), [(101, {"a": 100}), (1000, {})])
def test_a_job_that_cannot_start_holds_up_no_job_of_its_project(
    size: int, max_slots: Mapping[str, int]
) -> None:
    """It is the oldest of its project, and larger than the quota or than the cluster."""
    cluster = Cluster({"a": 1.0, "b": 2.0}, seed=0, max_slots=max_slots, nodes=24)
    cluster.waiting.append(Waiting("00000000", "a", size, queued_at=-1.0))
    cluster.run(300)
    assert "00000000" in {job.id for job in cluster.waiting}
    assert cluster.share("a") == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize("seed", range(2))
def test_no_job_waits_for_ever(seed: int) -> None:
    """Large jobs too, and those of a project with a small weight: each starts in its turn."""
    cluster = Cluster({"small": 0.1, "large": 10.0}, seed, max_slots={"large": 150})
    first = {job.id for job in cluster.waiting}
    for _ in range(40):
        if first.isdisjoint(job.id for job in cluster.waiting):
            return
        cluster.run(50)
    pytest.fail(f"still waiting: {first & {job.id for job in cluster.waiting}}")
