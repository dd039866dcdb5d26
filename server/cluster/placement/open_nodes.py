"""Sorted lists of open nodes: nodes that have free slots and that no job ahead keeps."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Mapping, Sequence
from operator import attrgetter

from server.cluster.placement.demand import Offer

MAX_FOLLOWED = 50
"""Maximum number of changes applied one by one; with more changes, sorting all nodes is as fast."""
BY_FREE = attrgetter("by_free")
"""Sort key for the nodes of an allocation: number of free slots, then the name."""


class OpenNodes:
    """Open nodes in each set of nodes that a demand may span, updated after each start in a round.

    The start of a job takes slots on few nodes, so only these nodes are sorted again at the
    demand's next turn. No slot becomes free during a round. When a job begins to keep nodes, this
    object is outdated, and a new one is needed.
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
            spans: names of the nodes in each set.
            left: all nodes by name; the round updates them.
            kept: names of the nodes that jobs ahead keep.
            changes: for each start of a job on a node, the node's offer before and after the
                start; the round appends to this list.
        """
        self._spans, self._left, self._kept, self._changes = spans, left, kept, changes
        self._groups: list[list[Offer]]
        self._seen: int
        self._sort()

    def groups(self) -> Sequence[list[Offer]]:
        """Return the open nodes of each set at the current turn, sorted by `BY_FREE`."""
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
    """Move a changed node to its new position in a sorted group; do nothing for an absent node."""
    index = bisect_left(group, before.by_free, key=BY_FREE)
    if index < len(group) and group[index] is before:
        del group[index]
        if after.free:
            insort(group, after, key=BY_FREE)
