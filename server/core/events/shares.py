"""Shares of what one process serves at a time, so that no token takes it from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """Who holds a place: a token, from an address."""

    token_id: str
    address: str | None = None
    """As it is counted; None where the address is that of a proxy, whose clients it stands for."""


@dataclass(frozen=True)
class ShareLimits:
    """Most places of each kind."""

    total: int
    per_token: int
    per_address: int


class NoPlaceError(Exception):
    """Every place is held, and none of the holders has more than its part."""


def gives_way(
    open_now: Sequence[tuple[Holder, object]], new: Holder, limits: ShareLimits
) -> object | None:
    """Return which place a new one takes; None where there is room.

    Of a token that has all of its places the oldest one gives way, also where its address or the
    process is full. Else that is the oldest of the token that holds the most, so that tokens share
    equally.

    Args:
        open_now: holders and their places, the oldest first.
        new: the holder of one more.
        limits: most places.

    Raises:
        NoPlaceError: all are held, and no token has two more than this one.
    """
    mine = [each for each in open_now if each[0].token_id == new.token_id]
    if len(mine) >= limits.per_token:
        return mine[0][1]
    near = [each for each in open_now if new.address and each[0].address == new.address]
    for some, most in ((near, limits.per_address), (open_now, limits.total)):
        if len(some) >= most:
            return _of_heaviest(some, new)
    return None


def _of_heaviest(some: Sequence[tuple[Holder, object]], new: Holder) -> object:
    counted = Counter(holder.token_id for holder, _ in some)
    heaviest, most = counted.most_common(1)[0]
    own = counted[new.token_id]
    if most <= own + 1:
        if not own:
            raise NoPlaceError
        heaviest = new.token_id
    return next(place for holder, place in some if holder.token_id == heaviest)


class Waits:
    """Counts what waits in this process by its holder: one has at most a number of waits at once.

    Its methods run in the event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counted: Counter[str] = Counter()

    @contextmanager
    def turn(self, holder: str) -> Iterator[bool]:
        """Count a wait until the block ends; False where the holder has no more of them."""
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
