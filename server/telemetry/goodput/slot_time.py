"""Slot-time of held and free slots, by category and day, as pure functions.

Times are Unix times in milliseconds, days are numbers of UTC days since 1970, and slot-time is
slots times milliseconds. All sums are exact integers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from server.telemetry.goodput.ledger import Interval
from trainyard.protocol.goodput import TimeCategory

DAY = 86_400_000
"""Milliseconds of a day."""

Spent = Counter[str]
"""Slot-time by category; the key is a `TimeCategory` or the stored name of one."""
ByDay = dict[int, Spent]
"""Slot-time by day and category."""


@dataclass(frozen=True, slots=True)
class Held:
    """The slots of a node that a share held."""

    node: str
    slots: int
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class CapacityChange:
    """The capacity of a node from the time `since` on."""

    node: str
    since: int
    slots: int
    use: TimeCategory
    """Category of the node's free slots."""
    withheld: int = 0
    """Number of withheld slots among the free ones, if the node takes jobs."""

    def unheld(self, held: int) -> Iterator[tuple[TimeCategory, int]]:
        """Yield the free slots by category while shares hold `held` slots of the node."""
        free = max(self.slots - held, 0)
        withheld = min(self.withheld, free) if self.use == TimeCategory.IDLE else 0
        if withheld:
            yield TimeCategory.WITHHELD, withheld
        if free > withheld:
            yield self.use, free - withheld


def days(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each day between two times, with start and end of its part in the period."""
    at = start
    while at < end:
        day = at // DAY
        last = min(end, (day + 1) * DAY)
        yield day, at, last
        at = last


def spread(
    intervals: Sequence[Interval],
    held: Held,
    *,
    start: int,
    end: int,
    rest: TimeCategory = TimeCategory.OTHER,
) -> ByDay:
    """Return the slot-time that a share held between two times, by day.

    Args:
        intervals: the intervals of the share's attempt, in order.
        held: the share.
        start: start of the period.
        end: end of the period.
        rest: category of the time outside all intervals.
    """
    found: ByDay = {}
    for day, first, last in days(max(start, held.since), min(end, held.until)):
        spent: Spent = Counter()
        left = last - first
        for interval in intervals:
            for category, time in interval.within(first, last):
                spent[category] += time * held.slots
                left -= time
        if left:
            spent[rest] += left * held.slots
        found[day] = spent
    return found


def unheld(
    capacity: Iterable[CapacityChange], held: Iterable[Held], *, start: int, end: int
) -> ByDay:
    """Return the slot-time of free slots by day.

    While shares hold more slots than a node offers, the node has no free slots.
    """
    changes: dict[str, list[CapacityChange]] = defaultdict(list)
    for change in capacity:
        changes[change.node].append(change)
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for share in held:
        steps[share.node] += ((share.since, share.slots), (share.until, -share.slots))
    found: ByDay = {}
    for node, own in changes.items():
        _add_node(
            found, sorted(own, key=lambda each: each.since), steps=steps[node], start=start, end=end
        )
    return found


def _add_node(
    found: ByDay,
    changes: Sequence[CapacityChange],
    *,
    steps: Iterable[tuple[int, int]],
    start: int,
    end: int,
) -> None:
    moments: list[tuple[int, int, CapacityChange | None]] = [
        *((change.since, 0, change) for change in changes),
        *((at, slots, None) for at, slots in steps),
    ]
    moments.sort(key=lambda moment: moment[0])
    now, taken, current = start, 0, None
    for at, slots, change in [*moments, (end, 0, None)]:
        until = min(at, end)
        if until > now:
            if current is not None:
                for use, free in current.unheld(taken):
                    for day, first, last in days(now, until):
                        found.setdefault(day, Counter())[use] += free * (last - first)
            now = until
        taken += slots
        current = change or current


def total(found: Mapping[int, Spent]) -> Spent:
    """Return the slot-time by category, summed over all days."""
    summed: Spent = Counter()
    for spent in found.values():
        summed.update(spent)
    return summed


def add(found: ByDay, other: Mapping[int, Spent]) -> None:
    """Add the slot-time of `other` to `found`, day by day."""
    for day, spent in other.items():
        found.setdefault(day, Counter()).update(spent)
