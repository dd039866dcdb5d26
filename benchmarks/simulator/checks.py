"""What a round may not do, recomputed from the trace alone: no code of the scheduler is used.

All nodes are alike and no share has a smallest size, so a job fits when as many slots are free as
it needs, and one that does not fit keeps every node.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from benchmarks.simulator.trace import TracedJob

NEVER = float("inf")


@dataclass(frozen=True)
class Waiting:
    """A queued job."""

    id: str
    job: TracedJob


@dataclass(frozen=True)
class Running:
    """A running attempt."""

    slots: int
    expected_end: float
    """Seconds from the beginning; `NEVER` where no end is expected."""


def in_order(
    waiting: Iterable[Waiting], held: Mapping[str, int], weights: Mapping[str, float]
) -> Iterable[Waiting]:
    """Yield queued jobs in the order in which they get slots: priorities, then fair share.

    Args:
        waiting: the jobs.
        held: slots that each project holds.
        weights: weight of each project.
    """
    lines: dict[str, list[tuple[int, float, str, Waiting]]] = {}
    for each in waiting:
        key = (-each.job.priority, each.job.arrives_at, each.id, each)
        lines.setdefault(each.job.project, []).append(key)
    counted = dict(held)
    heads: list[tuple[int, float, float, str, str]] = []

    def add_head(project: str) -> None:
        priority, since, job_id, _ = lines[project][-1]
        tag = counted.get(project, 0) / weights[project]
        heapq.heappush(heads, (priority, tag, since, job_id, project))

    for project, line in lines.items():
        line.sort(reverse=True)  # the first one is popped first
        add_head(project)
    while heads:
        project = heapq.heappop(heads)[-1]
        first = lines[project].pop()[-1]
        counted[project] = counted.get(project, 0) + first.job.world_size
        yield first
        if lines[project]:
            add_head(project)


def head_behind(
    order: Iterable[Waiting], placed: Collection[str]
) -> tuple[Waiting | None, set[str]]:
    """Return the first job of the queue that a round did not place, and those placed behind it.

    Args:
        order: the queue before the round.
        placed: ids of the jobs that the round placed.
    """
    ahead: set[str] = set()
    for each in order:
        if each.id not in placed:
            return each, set(placed) - ahead
        ahead.add(each.id)
    return None, set()


def earliest_start(size: int, free: int, running: Iterable[Running]) -> float:
    """Return when so many slots are free, if attempts end as expected and nothing else starts.

    Args:
        size: slots that a job needs.
        free: slots that are free now.
        running: what holds the others.
    """
    ends = sorted((each.expected_end, each.slots) for each in running)
    sums = accumulate((slots for _, slots in ends), initial=free)
    return next(
        (
            end
            for total, end in zip(sums, [0.0, *(end for end, _ in ends)], strict=True)
            if total >= size
        ),
        NEVER,
    )
