"""The order of the queue by its definition: repeatedly the next job of the least project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Waiting:
    """A waiting job."""

    id: str
    project: str
    size: int
    queued_at: float
    priority: int = 0
    lasts: float = 0.0
    owner: str = ""


def fair_order(
    waiting: Iterable[Waiting],
    held: Mapping[str, int],
    *,
    weights: Mapping[str, float],
    largest: Mapping[str, int],
    beyond_limits: Collection[str] = (),
) -> Sequence[Waiting]:
    """Return the jobs in their order, chosen one by one.

    Args:
        waiting: the jobs.
        held: slots that each project holds.
        weights: weight of each project.
        largest: size of the largest job of each project that can start; a larger one counts 0.
        beyond_limits: ids of jobs beyond a limit of their owner; such a job counts 0.
    """
    left = sorted(waiting, key=lambda job: (-job.priority, job.queued_at, job.id))
    counted = Counter(held)
    order: list[Waiting] = []
    while left:
        priority = left[0].priority
        heads: dict[str, Waiting] = {}
        for job in left:
            if job.priority == priority:
                heads.setdefault(job.project, job)
        chosen = min(
            heads.values(),
            key=lambda job: (counted[job.project] / weights[job.project], job.queued_at, job.id),
        )
        if chosen.size <= largest[chosen.project] and chosen.id not in beyond_limits:
            counted[chosen.project] += chosen.size
        order.append(chosen)
        left.remove(chosen)
    return order
