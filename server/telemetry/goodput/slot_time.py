"""Slot-time of held and free slots, by category and day, as pure functions.

Times are Unix times in milliseconds, days are numbers of UTC days since 1970, and slot-time is
slots times milliseconds. All sums are exact integers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

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
    """The slots of a node that a share held from `since` to `until`."""

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
    """Number of withheld slots; they count only while the node takes jobs."""

    def unheld(self, held: int) -> Iterator[tuple[TimeCategory, int]]:
        """Yield the free slots by category while shares hold `held` slots of the node."""
        free = max(self.slots - held, 0)
        withheld = min(self.withheld, free) if self.use == TimeCategory.IDLE else 0
        if withheld:
            yield TimeCategory.WITHHELD, withheld
        if free > withheld:
            yield self.use, free - withheld


_Moment = tuple[int, int, CapacityChange | None]
"""A time, the change in the number of held slots at that time, and the new capacity if any."""


def days(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each day of a period, with the start and end of the day's part in the period."""
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
    """Return the slot-time of a share from `start` to `end`, by day.

    The time outside all intervals of the share's attempt has the category `rest`.
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
    moments: dict[str, list[_Moment]] = defaultdict(list)
    for change in capacity:
        moments[change.node].append((change.since, 0, change))
    for share in held:
        moments[share.node] += (
            (share.since, share.slots, None),
            (share.until, -share.slots, None),
        )
    found: ByDay = defaultdict(Counter)
    for own in moments.values():
        _add_node(found, sorted(own, key=itemgetter(0)), start=start, end=end)
    return found


def _add_node(found: ByDay, moments: Sequence[_Moment], *, start: int, end: int) -> None:
    now, taken = start, 0
    current: CapacityChange | None = None
    for at, slots, change in [*moments, (end, 0, None)]:
        until = max(min(at, end), now)
        for use, free in current.unheld(taken) if current else ():
            for day, first, last in days(now, until):
                found[day][use] += free * (last - first)
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
