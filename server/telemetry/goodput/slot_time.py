"""Slot-time by category and day, as pure functions: held slots, and those that no share held.

Times are Unix times in milliseconds, days the numbers of UTC days since 1970, and slot-time is
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
"""Slot-time by category, a `TimeCategory` or the same name as it is stored."""
ByDay = dict[int, Spent]
"""Slot-time by category, of each day."""


@dataclass(frozen=True, slots=True)
class Held:
    """Slots of a node that a share held."""

    node: str
    slots: int
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class CapacityChange:
    """What a node offers from a moment on."""

    node: str
    since: int
    slots: int
    use: TimeCategory
    """Category of those of its slots that no share holds."""
    withheld: int = 0
    """How many of them are withheld while it takes jobs."""

    def unheld(self, held: int) -> Iterator[tuple[TimeCategory, int]]:
        """Yield the slots of each category, of a node on which shares hold some."""
        free = max(self.slots - held, 0)
        withheld = min(self.withheld, free) if self.use == TimeCategory.IDLE else 0
        if withheld:
            yield TimeCategory.WITHHELD, withheld
        if free > withheld:
            yield self.use, free - withheld


def days(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each day between two times, with the beginning and the end of its part."""
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
        intervals: those of its attempt, in their order.
        held: the share.
        start: the first moment that counts.
        end: the end of what counts.
        rest: category of what no interval covers.
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
    """Return the slot-time of the slots that no share held, by day.

    A node that offers fewer slots than are held on it has none that is not held.
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
    """Return the sum of all days."""
    summed: Spent = Counter()
    for spent in found.values():
        summed.update(spent)
    return summed


def add(found: ByDay, other: Mapping[int, Spent]) -> None:
    """Add slot-time to that of its days."""
    for day, spent in other.items():
        found.setdefault(day, Counter()).update(spent)
