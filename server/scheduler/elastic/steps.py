"""Parts of a round that take long: each tick carries out as much of one as its time allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from time import perf_counter
from typing import TypeVar

Row = TypeVar("Row")

SECONDS_A_TICK = 0.1
"""Longest time in one tick, but for its last step. A round of the leader has ten parts and a pause
of a quarter of a second, and whatever waits for a slot waits for the round."""
LOOKED_AT_ONCE = 20
"""Jobs of one look; the next look begins behind them."""


class Steps:
    """Runs a part of a round over as many ticks as it needs."""

    def __init__(
        self,
        begin: Callable[[], Iterator[int]],
        *,
        clock: Callable[[], datetime],
        every: timedelta = timedelta(),
    ) -> None:
        """Keep how the part begins, and when.

        Args:
            begin: returns the steps of one run; each yields the number of its changes.
            clock: returns the present time.
            every: time from the begin of a run to that of the next one, at least.
        """
        self._begin = begin
        self._clock = clock
        self._every = every
        self._begun_at: datetime | None = None
        self._left: Iterator[int] | None = None

    @property
    def is_paused(self) -> bool:
        """Whether steps are left of the last run."""
        return self._left is not None

    def run(self) -> int:
        """Carry out steps to the first change, and return the number of changes.

        What the run left over after a change is dropped: it was read before the change.
        """
        if self._left is None and not self._may_begin():
            return 0
        steps, self._left = self._left or self._begin(), None
        ends_at = perf_counter() + SECONDS_A_TICK
        for changes in steps:
            if changes:
                return changes
            if perf_counter() >= ends_at:
                self._left = steps
                return 0
        return 0

    def _may_begin(self) -> bool:
        """Return whether the pause between two runs is over; if so, the next one has begun."""
        now = self._clock()
        # A clock that is set back must not put the next run off.
        if self._begun_at is not None and timedelta() <= now - self._begun_at < self._every:
            return False
        self._begun_at = now
        return True


class Rotation:
    """Gives each of many jobs its turn, some of them at each look."""

    def __init__(self) -> None:
        """Begin with the first job."""
        self._turn = 0

    def next(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows of the next look, of those that there are now."""
        turn = self._turn % max(len(rows), 1)
        self._turn = turn + LOOKED_AT_ONCE
        return [*rows[turn:], *rows[:turn]][:LOOKED_AT_ONCE]
