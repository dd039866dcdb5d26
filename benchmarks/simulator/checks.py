"""Rules that a round must keep, recomputed from the trace alone, without the scheduler's code.

All nodes are equal and no share has a minimum size. So a job fits if enough slots are free, and a
job that does not fit reserves every node.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from benchmarks.simulator.trace import TracedJob

NEVER = float("inf")
MAX_STARTED = 500
"""Most jobs that a round starts (docs/lifecycle-placing.md, 3); further ones start in the next."""


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
    """Seconds since the start of the trace; `NEVER` if no end is expected."""
    overtook: Waiting | None = None
    """Its job as it waited, if it overtook the jobs ahead on an estimate alone: it leaves for these
    once they fit."""
    began_at: float = 0.0
    """Seconds since the start of the trace."""


class Line:
    """The queued jobs of each project by priority and arrival."""

    def __init__(self) -> None:
        self._projects: dict[str, list[tuple[int, float, str, Waiting]]] = {}

    def add(self, each: Waiting) -> None:
        """Add a job."""
        insort(self._projects.setdefault(each.job.project, []), _place(each))

    def remove(self, each: Waiting) -> None:
        """Remove a starting job."""
        line = self._projects[each.job.project]
        del line[bisect_left(line, _place(each))]
        if not line:
            del self._projects[each.job.project]

    def lets_ahead(
        self,
        each: Running,
        head: Waiting,
        *,
        held: Mapping[str, int],
        weights: Mapping[str, float],
        without: Collection[str],
    ) -> bool:
        """Return whether an attempt gives way to a job.

        The job waited when the attempt started, and precedes the attempt's own job, as if that were
        still waiting and held nothing.

        Args:
            each: the attempt.
            head: the job.
            held: slots that each project holds.
            weights: weight of each project.
            without: ids of jobs to ignore.
        """
        own = each.overtook
        if own is None or head.job.arrives_at > each.began_at:
            return False
        if own.job.project == head.job.project:
            return _place(head)[:3] < _place(own)[:3]
        left = {**held, own.job.project: held[own.job.project] - each.slots}
        behind = self._rank(own, left, weights, without=without)
        return self._rank(head, left, weights, without=without) < behind

    def _rank(
        self,
        each: Waiting,
        held: Mapping[str, int],
        weights: Mapping[str, float],
        *,
        without: Collection[str],
    ) -> tuple[int, float, float, str]:
        """Return the sort key of a job, even of one outside its line."""
        project = each.job.project
        line = self._projects.get(project, [])
        ahead = (entry[-1] for entry in line[: bisect_left(line, _place(each))])
        slots = sum(other.job.world_size for other in ahead if other.id not in without)
        tag = (held.get(project, 0) + slots) / weights[project]
        return -each.job.priority, tag, each.job.arrives_at, each.id

    def in_order(
        self, held: Mapping[str, int], weights: Mapping[str, float], *, without: Collection[str]
    ) -> Iterator[Waiting]:
        """Yield the jobs in the order in which they get slots: priorities, then fair share.

        Args:
            held: slots that each project holds.
            weights: weight of each project.
            without: ids of jobs to ignore.
        """
        counted = dict(held)
        heads: list[tuple[int, float, float, str, str]] = []
        lines = {
            project: (entry for entry in line if entry[-1].id not in without)
            for project, line in self._projects.items()
        }
        firsts: dict[str, Waiting] = {}

        def add_head(project: str) -> None:
            for priority, since, job_id, first in lines[project]:
                tag = counted.get(project, 0) / weights[project]
                heapq.heappush(heads, (priority, tag, since, job_id, project))
                firsts[project] = first
                return

        for project in lines:
            add_head(project)
        while heads:
            project = heapq.heappop(heads)[-1]
            first = firsts[project]
            counted[project] = counted.get(project, 0) + first.job.world_size
            yield first
            add_head(project)


def _place(each: Waiting) -> tuple[int, float, str, Waiting]:
    return -each.job.priority, each.job.arrives_at, each.id, each


def head_behind(
    order: Iterable[Waiting], placed: Collection[str]
) -> tuple[Waiting | None, set[str]]:
    """Return the first job of the queue that a round did not place, and jobs placed behind it.

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


def earliest_start(size: int, free: int, running: Collection[Running]) -> float:
    """Return when `size` slots are free, if attempts end as expected and nothing else starts.

    Args:
        size: slots that a job needs.
        free: slots that are free now.
        running: the attempts that hold the others.
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
