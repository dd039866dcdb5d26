"""Preemption: the choice of running attempts that leave for a waiting job of higher priority."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from math import comb

from server.cluster.placement.demand import LEAVES_WITHIN, Holding, Offer, QueuedJob
from server.cluster.placement.fit import NodeGroup, fits_with
from trainyard.spec.sections.resources import LOWEST_PRIORITY

MAX_SETS = 20_000
"""Maximum number of equally large sets of attempts to compare; if more exist, attempts are added
one by one."""
MAX_TRIED = 200
"""Maximum number of checks whether a job fits, for each size of sets and for the removal of
unneeded attempts; each check takes some milliseconds on 1,000 nodes."""


@dataclass(frozen=True)
class _Candidate:
    """An attempt that may be preempted."""

    holding: Holding
    usable: Mapping[str, int]
    """Number of the attempt's slots that the waiting job could use, by node."""
    rank: int
    """Priority of the attempt; a number below all priorities if the attempt gives way to the
    job."""

    @property
    def gain(self) -> int:
        """Sum of `usable` over all nodes."""
        return sum(self.usable.values())


def victims(
    groups: Sequence[NodeGroup],
    *,
    job: QueuedJob,
    holdings: Iterable[Holding],
    offers: Mapping[str, Offer],
    now: datetime,
    running_since: datetime,
) -> Sequence[Holding]:
    """Return the attempts to preempt so that a job fits; empty if none is needed or too few exist.

    The smallest set is chosen. Among equally small sets, the set with the lowest priorities is
    chosen, then the set with the fewest slots, then the set that started last. Attempts that give
    way to the job have the lowest rank. If there are too many sets to compare, attempts are added
    by priority until the job fits, and unneeded attempts are removed.

    Attempts that are expected to end within `LEAVES_WITHIN` count as gone. This includes attempts
    with an order to leave, unless they are overdue or silent. So no second set is preempted while
    the first set leaves.

    Args:
        groups: the nodes that the job may span, without nodes that jobs ahead keep.
        job: the waiting job.
        holdings: the holdings of attempts.
        offers: all nodes by name.
        now: the current time.
        running_since: an attempt of lower priority may leave only if its first step was at or
            before this time.
    """
    demand, nodes = job.demand, {offer.node for group in groups for offer in group.offers}
    freed: Counter[str] = Counter()
    candidates: list[_Candidate] = []
    for holding in holdings:
        leaves = holding.ends_at is not None and holding.ends_at <= now + LEAVES_WITHIN
        gives_way = holding.gives_way_to(job)
        may_leave = gives_way or (
            holding.priority < job.priority
            and holding.first_step_at is not None
            and holding.first_step_at <= running_since
        )
        if not leaves and not may_leave:
            continue
        usable = {
            node: count
            for node, count in holding.usable_by(demand, offers).items()
            if node in nodes
        }
        if not usable:
            continue
        if leaves:
            freed.update(usable)
        else:
            rank = LOWEST_PRIORITY - 1 if gives_way else holding.priority
            candidates.append(_Candidate(holding, usable, rank))

    def fits(chosen: Iterable[_Candidate]) -> bool:
        more = freed.copy()
        for candidate in chosen:
            more.update(candidate.usable)
        return fits_with(demand, groups, freed=more)

    if not candidates or fits(()) or not fits(candidates):
        return ()
    free = sum(len(offer.free) for group in groups for offer in group.offers) + freed.total()
    found = _fewest(candidates, fits, missing=demand.slots - free)
    return [candidate.holding for candidate in found]


def _fewest(
    candidates: Sequence[_Candidate], fits: Callable[[Iterable[_Candidate]], bool], *, missing: int
) -> Collection[_Candidate]:
    """Return the best of the smallest sufficient sets found; all together must suffice."""
    taken = _one_by_one(candidates, fits)
    for size in range(1, len(taken) + 1):
        if comb(len(candidates), size) > MAX_SETS:
            break
        sets = [c for c in combinations(candidates, size) if sum(x.gain for x in c) >= missing]
        sets.sort(key=_cost)
        found = next((chosen for chosen in sets[:MAX_TRIED] if fits(chosen)), None)
        if found is not None:
            return found
    return taken


def _one_by_one(
    candidates: Sequence[_Candidate], fits: Callable[[Iterable[_Candidate]], bool]
) -> list[_Candidate]:
    """Return a sufficient set; at most `MAX_TRIED` checks remove unneeded attempts from the set."""
    order = sorted(candidates, key=lambda c: (c.rank, -c.gain, _age(c)))
    count = bisect_left(range(1, len(order)), True, key=lambda size: fits(order[:size])) + 1
    taken = order[:count]
    for candidate in taken[-2 : -MAX_TRIED - 2 : -1]:  # the last attempt is always needed
        without = [other for other in taken if other is not candidate]
        if fits(without):
            taken = without
    return taken


def _cost(chosen: Sequence[_Candidate]) -> tuple[list[int], int, float]:
    """Return the sort key of a set of victims: priorities, slots, ages; the lowest key is best."""
    priorities = sorted((c.rank for c in chosen), reverse=True)
    slots = sum(c.holding.slots for c in chosen)
    return priorities, slots, sum(map(_age, chosen))


def _age(candidate: _Candidate) -> float:
    """Return the negated time of the attempt's first step, or else of the attempt's placement."""
    since = candidate.holding.first_step_at or candidate.holding.overtook_at
    assert since is not None, "a candidate took a step, or gives way"
    return -since.timestamp()
