"""Backfill: shorter jobs use nodes that waiting jobs keep, until the waiting jobs can start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate

from server.cluster.placement.demand import Demand, Holding, Offer
from server.cluster.placement.fit import NodeGroup, fits_with

MAX_KEEPERS = 10
"""Maximum number of waiting jobs for which a round computes the earliest start; each computation
takes some milliseconds on 1,000 nodes. On the nodes that further waiting jobs keep, nothing is
backfilled.
"""
_AT_ONCE = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Keeper:
    """A job that waits for slots and keeps the nodes that could hold it."""

    name: str
    demand: Demand
    groups: Sequence[NodeGroup]
    """Groups of nodes that could hold the job, in their state at the job's turn."""
    holdings: Sequence[Holding]
    """Holdings at the job's turn, including the holdings of jobs that started in the same round."""
    offers: Mapping[str, Offer]
    """All nodes, by name."""
    ahead: Sequence[Keeper]
    """Keepers ahead of the job in the queue."""

    @cached_property
    def nodes(self) -> frozenset[str]:
        """Names of the nodes that the job keeps."""
        return frozenset(offer.node for group in self.groups for offer in group.offers)

    @cached_property
    def earliest_start(self) -> datetime | None:
        """Earliest time at which the job could start; None if it is unknown.

        It is unknown if the known ends free too few slots, or if `MAX_KEEPERS` keepers are ahead.

        A keeper ahead of the job closes its nodes until its own earliest start. From that time on,
        its nodes count as free, as if the keeper took no slots. So the computed time may be too
        early. The number of free slots only grows with time, so bisection finds the time.
        """
        if len(self.ahead) >= MAX_KEEPERS:
            return None
        starts = [(keeper, keeper.earliest_start) for keeper in self.ahead]
        events: list[tuple[datetime, Mapping[str, int]]] = [
            (end, self._gain(holding))
            for holding in self.holdings
            if (end := holding.ends_at or holding.ends_by) is not None
        ]
        events += [(start, {}) for _, start in starts if start is not None]
        events = [(_AT_ONCE, {}), *sorted(events, key=lambda event: event[0])]
        free = sum(len(offer.free) for group in self.groups for offer in group.offers)
        totals = accumulate((sum(gain.values()) for _, gain in events), initial=free)
        enough = bisect_left(list(totals)[1:], self.demand.slots)

        def fits(number: int) -> bool:
            freed = (gain for _, gain in events[: number + 1])
            return self._fits(freed, closed_before(events[number][0], starts))

        numbers = range(enough, len(events))
        found = bisect_left(numbers, True, key=fits)
        return events[numbers[found]][0] if found < len(numbers) else None

    @cached_property
    def is_estimated(self) -> bool:
        """Whether the earliest start depends on ends that are only expected.

        With the certain ends alone, the job would start later. It would never start earlier,
        because an expected end is never after the certain end.
        """
        start = self.earliest_start
        if start is None:
            return False
        freed = (
            self._gain(holding)
            for holding in self.holdings
            if holding.ends_by is not None and holding.ends_by <= start
        )
        certain = [(k, None if k.is_estimated else k.earliest_start) for k in self.ahead]
        return not self._fits(freed, closed_before(start, certain))

    def _fits(self, gains: Iterable[Mapping[str, int]], closed: set[str]) -> bool:
        """Return whether the job fits on free and freed slots of nodes that are not `closed`."""
        freed: Counter[str] = Counter()
        for gain in gains:
            freed.update(gain)
        groups = [group.without(closed) for group in self.groups]
        return fits_with(self.demand, groups, freed=freed)

    def _gain(self, holding: Holding) -> dict[str, int]:
        usable = holding.usable_by(self.demand, self.offers)
        return {node: count for node, count in usable.items() if node in self.nodes}


def closed_before(time: datetime, starts: Iterable[tuple[Keeper, datetime | None]]) -> set[str]:
    """Return the nodes of keepers that cannot start at or before this time."""
    closed: set[str] = set()
    for keeper, start in starts:
        if start is None or start > time:
            closed |= keeper.nodes
    return closed


def estimated(keepers: Iterable[Keeper]) -> set[str]:
    """Return the nodes of keepers with an earliest start that depends on estimates."""
    return {node for keeper in keepers if keeper.is_estimated for node in keeper.nodes}


def needed_before(end: datetime, keepers: Iterable[Keeper]) -> set[str]:
    """Return the nodes of keepers that could start before `end`, or at an unknown time."""
    needed: set[str] = set()
    for keeper in keepers:
        if keeper.earliest_start is None or keeper.earliest_start < end:
            needed |= keeper.nodes
    return needed
