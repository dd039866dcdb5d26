"""Traces: arrivals of jobs, their needs, and their durations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

Known = Literal["nothing", "history", "bounds"]
"""What is known about the duration of a new job: nothing, the durations of earlier jobs of its
training part, or the bound given by a person."""
KNOWN: tuple[Known, ...] = get_args(Known)
SLOTS_PER_NODE = 8
SMALLEST_QUEUE = 30
"""Workloads of one queue of Kueue's test; a trace has whole queues."""
SECONDS_PER_MILLISECOND = 1.0
"""A millisecond of Kueue's test lasts a second here: the scheduler polls four times a second."""


@dataclass(frozen=True)
class TracedJob:
    """A job of a trace."""

    name: str
    project: str
    priority: int
    world_size: int
    arrives_at: float
    """Seconds since the start of the trace."""
    seconds: float
    """Its duration."""
    expected_seconds: float | None
    """Bound given by a person, never less than `seconds`; None if ends are unknown."""
    part: str = ""
    """Its training part: jobs of the same part have similar durations."""

    @property
    def slot_seconds(self) -> float:
        """Slots times seconds."""
        return self.world_size * self.seconds


@dataclass(frozen=True)
class Trace:
    """Jobs by arrival, and the projects that share the cluster."""

    jobs: Sequence[TracedJob]
    weights: Mapping[str, float]
    """Weight of each project."""
    nodes: int
    """Nodes of `SLOTS_PER_NODE` slots."""

    @property
    def slots(self) -> int:
        """Slots of the cluster."""
        return self.nodes * SLOTS_PER_NODE


@dataclass(frozen=True)
class _Class:
    """Workloads of one kind in each queue of Kueue's test."""

    name: str
    count: int
    interval: float
    """Milliseconds between two arrivals."""
    runtime: float
    """Milliseconds."""
    priority: int
    request: int


# kubernetes-sigs/kueue, test/performance/scheduler/configs/large-scale/generator.yaml, as of
# 2026: 20 cohorts of 100 queues, with 30 workloads each.
_KUEUE = (
    _Class("small", 20, 20, 50, 50, 1),
    _Class("medium", 7, 50, 100, 100, 5),
    _Class("large", 3, 200, 200, 200, 20),
)


def kueue(count: int, nodes: int, seed: int) -> Trace:
    """Return Kueue's large-scale test: each queue is a project of weight 1.

    Its priorities 50, 100 and 200 become -50, 0 and 50; only the order of the queues' arrivals is
    random. The scheduler knows no duration, as in Kueue.

    Args:
        count: number of jobs; 60,000 in the published test, and at least those of one queue.
        nodes: nodes of the cluster.
        seed: seed of the order in which queues submit at the same moment.
    """
    queues = [f"queue-{number:04}" for number in range(max(count // SMALLEST_QUEUE, 1))]
    random.Random(seed).shuffle(queues)
    ranks = {each.priority: 50 * rank for rank, each in enumerate(_KUEUE, start=-1)}
    jobs = [
        TracedJob(
            name=f"{queue}-{each.name}-{number}",
            project=queue,
            priority=ranks[each.priority],
            world_size=each.request,
            arrives_at=(number + 1) * each.interval * SECONDS_PER_MILLISECOND,
            seconds=each.runtime * SECONDS_PER_MILLISECOND,
            expected_seconds=None,
            part=each.name,
        )
        for each in _KUEUE
        for number in range(each.count)
        for queue in queues
    ]
    jobs.sort(key=lambda job: job.arrives_at)
    return Trace(jobs, dict.fromkeys(sorted(queues), 1.0), nodes)


WEIGHTS = (1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0)
MEDIAN_SECONDS = 600.0
SIGMA = 1.5
"""Sigma of the logarithm of a duration: the mean is three times the median."""
LONGEST_SECONDS = 4 * 3600.0
"""Time limit of every job."""
LARGEST_FACTOR = 5.0
"""Limit of a person's bound, as a multiple of the job's duration."""
ALIKE = 10
"""Jobs per training part: those of one size with the closest durations."""
OVERLOAD = 4 / 3
"""Arriving work per time, as a multiple of the cluster's capacity."""


def heavy_tail(count: int, nodes: int, seed: int, *, part_of_cluster: int = 8) -> Trace:
    """Return jobs of log-normal durations, on powers of two of slots, in projects of eight weights.

    Bounds are real durations times a random factor, uniform from 1 to `LARGEST_FACTOR`. Jobs arrive
    at random times, faster than the cluster runs them. Each project's share of the work follows its
    weight, so that all projects wait for most of the time.

    Args:
        count: jobs.
        nodes: nodes of the cluster.
        seed: seed of all random numbers.
        part_of_cluster: the largest job needs one part in this many of the cluster.
    """
    chance = random.Random(seed)
    slots = nodes * SLOTS_PER_NODE
    sizes = [
        2**power
        for power in range(slots.bit_length())
        if 2**power <= max(slots // part_of_cluster, 1)
    ]
    rarity = [size**-0.5 for size in sizes]
    weights = {f"project-{number}": weight for number, weight in enumerate(WEIGHTS)}
    drawn = []
    for number in range(count):
        seconds = min(MEDIAN_SECONDS * chance.lognormvariate(0.0, SIGMA), LONGEST_SECONDS)
        job = TracedJob(
            name=f"job-{number}",
            project=chance.choices(list(weights), list(weights.values()))[0],
            priority=0,
            world_size=chance.choices(sizes, rarity)[0],
            arrives_at=0.0,
            seconds=seconds,
            expected_seconds=seconds * chance.uniform(1.0, LARGEST_FACTOR),
        )
        drawn.append(job)
    order = sorted(range(count), key=lambda n: (drawn[n].world_size, drawn[n].seconds))
    parts = {number: f"part-{place // ALIKE}" for place, number in enumerate(order)}
    drawn = [replace(job, part=parts[number]) for number, job in enumerate(drawn)]
    window = sum(job.slot_seconds for job in drawn) / slots / OVERLOAD
    times = sorted(chance.uniform(0.0, window) for _ in drawn)
    jobs = [replace(job, arrives_at=time) for job, time in zip(drawn, times, strict=True)]
    return Trace(jobs, weights, nodes)


def wide_heavy_tail(count: int, nodes: int, seed: int) -> Trace:
    """Return `heavy_tail` with jobs of up to half of the cluster, which wait the longest."""
    return heavy_tail(count, nodes, seed, part_of_cluster=2)


SATURATING_RATE = 1_000.0
"""Arriving jobs per second, to keep the scheduler busy: twice its target rate of placements."""


def saturated_heavy_tail(count: int, nodes: int, seed: int) -> Trace:
    """Return `heavy_tail` at `SATURATING_RATE`: all its times are divided by one factor."""
    trace = heavy_tail(count, nodes, seed)
    factor = count / SATURATING_RATE / trace.jobs[-1].arrives_at
    jobs = [
        replace(
            job,
            arrives_at=job.arrives_at * factor,
            seconds=job.seconds * factor,
            expected_seconds=job.expected_seconds and job.expected_seconds * factor,
        )
        for job in trace.jobs
    ]
    return replace(trace, jobs=jobs)


@dataclass(frozen=True)
class Shape:
    """A kind of trace, and the settings of its runs."""

    make: Callable[[int, int, int], Trace]
    """Makes a trace from a number of jobs, a number of nodes, and a seed."""
    sample: tuple[int, int]
    """Default numbers of jobs and nodes, without the whole trace: some minutes."""
    whole: tuple[int, int]
    arrives_singly: bool = False
    """Whether most rounds find at most one job to place, which shows the cost of a round."""
    known: Sequence[Known] = ("nothing",)
    """What is known about the durations of new jobs, one run each."""
    is_even: bool = True
    """Whether jobs are small enough for targets of heads' waits and of projects' shares."""
    saturates: bool = False
    """Whether a round lasts as long as its processor time; then no figures of order are printed."""


SHAPES: Mapping[str, Shape] = {
    "kueue": Shape(kueue, (12_000, 200), (60_000, 1_000)),
    "heavy_tail": Shape(heavy_tail, (600, 100), (5_000, 1_000), arrives_singly=True, known=KNOWN),
    "heavy_tail_wide": Shape(
        wide_heavy_tail,
        (600, 16),
        (5_000, 1_000),
        arrives_singly=True,
        known=KNOWN,
        is_even=False,
    ),
    "heavy_tail_saturated": Shape(
        saturated_heavy_tail, (5_000, 1_000), (5_000, 1_000), known=("bounds",), saturates=True
    ),
}


def shortest_makespan(trace: Trace) -> float:
    """Return a lower bound in seconds for the end of any schedule of a trace, even an offline one.

    That is the latest end of a job that starts on arrival, or the time that the whole cluster needs
    for the work from any arrival on.
    """
    latest, left = 0.0, 0.0
    for job in reversed(trace.jobs):
        left += job.slot_seconds
        latest = max(latest, job.arrives_at + job.seconds, job.arrives_at + left / trace.slots)
    return latest
