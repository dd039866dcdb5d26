"""Open nodes: those with free slots that no job ahead keeps, sorted; they follow each start."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Mapping, Sequence
from operator import attrgetter

from server.cluster.placement.demand import Offer

MAX_FOLLOWED = 50
"""Changes after which sorting all nodes anew costs no more than following them one by one."""
BY_FREE = attrgetter("by_free")
"""The key that the nodes of an allocation are sorted by: free slots, then the name."""


class OpenNodes:
    """The open nodes of each set of nodes that a demand may span, from turn to turn of a round.

    A start takes slots of few nodes, so the next turn of the demand moves these alone. In a round
    no node gets a free slot, and a job that keeps nodes makes the caller begin anew.
    """

    def __init__(
        self,
        spans: Sequence[Sequence[str]],
        *,
        left: Mapping[str, Offer],
        kept: Container[str],
        changes: Sequence[tuple[Offer, Offer]],
    ) -> None:
        """Sort the open nodes.

        Args:
            spans: names of the nodes of each set.
            left: all nodes by name, as they are in the present turn.
            kept: names of the nodes that jobs ahead keep.
            changes: the nodes from which slots were taken in this round, each before and after; the
                round appends to it.
        """
        self._spans, self._left, self._kept, self._changes = spans, left, kept, changes
        self._groups: list[list[Offer]]
        self._seen: int
        self._sort()

    def groups(self) -> Sequence[list[Offer]]:
        """Return the open nodes of each set, sorted by `BY_FREE`, as they are in this turn."""
        if len(self._changes) - self._seen > MAX_FOLLOWED:
            self._sort()
        for before, after in self._changes[self._seen :]:
            for group in self._groups:
                _replace(group, before, after)
        self._seen = len(self._changes)
        return self._groups

    def _sort(self) -> None:
        left, kept = self._left, self._kept
        self._groups = [
            sorted(
                (offer for name in span if name not in kept and (offer := left[name]).free),
                key=BY_FREE,
            )
            for span in self._spans
        ]
        self._seen = len(self._changes)


def _replace(group: list[Offer], before: Offer, after: Offer) -> None:
    """Put a node to its new place, where it is in a sorted group."""
    index = bisect_left(group, before.by_free, key=BY_FREE)
    if index < len(group) and group[index] is before:
        del group[index]
        if after.free:
            insort(group, after, key=BY_FREE)
