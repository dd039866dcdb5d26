"""The places of one process for streams or long polls, divided fairly among people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """Holder of a place: a person at an address."""

    person: str
    """Identity of the person: a user, or a token of the built-in user."""
    address: str | None = None
    """Key of the client's address (`counted_as`); None for a proxy, which has many clients."""


@dataclass(frozen=True)
class ShareLimits:
    """Maximum numbers of places: in total, per person and per address."""

    total: int
    per_person: int
    per_address: int


class NoPlaceError(Exception):
    """Every place is held, and no person has more than one of them."""


def gives_way(
    open_now: Sequence[tuple[Holder, object]], new: Holder, limits: ShareLimits
) -> object | None:
    """Return the place that must end for a new one, or None if no place must end.

    A person at the limit gives up its own oldest place, even if its address or the process is full.
    Otherwise, if the address or the process is full, the person with the most places gives up
    the oldest of them, so that people share equally. If that person has at most one place more than
    the person of the new place, the latter gives up its own oldest place.

    Args:
        open_now: holders and their places, the oldest first.
        new: the holder of the new place.
        limits: the maximum numbers of places.

    Raises:
        NoPlaceError: all places of the process or the address are held, each by a different person,
            none by that of the new place.
    """
    mine = [each for each in open_now if each[0].person == new.person]
    if len(mine) >= limits.per_person:
        return mine[0][1]
    near = [each for each in open_now if new.address and each[0].address == new.address]
    for some, most in ((near, limits.per_address), (open_now, limits.total)):
        if len(some) >= most:
            return _of_heaviest(some, new)
    return None


def _of_heaviest(some: Sequence[tuple[Holder, object]], new: Holder) -> object:
    counted = Counter(holder.person for holder, _ in some)
    heaviest, most = counted.most_common(1)[0]
    own = counted[new.person]
    if most <= own + 1:
        if not own:
            raise NoPlaceError
        heaviest = new.person
    return next(place for holder, place in some if holder.person == heaviest)


class Waits:
    """Counts how many requests of each holder wait in the event loop, up to a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counted: Counter[str] = Counter()

    @contextmanager
    def turn(self, holder: str) -> Iterator[bool]:
        """Count one more wait while the block runs; yield False if the holder is at its limit."""
        if self._counted[holder] >= self._most:
            yield False
            return
        self._counted[holder] += 1
        try:
            yield True
        finally:
            self._counted[holder] -= 1
            if not self._counted[holder]:
                del self._counted[holder]
