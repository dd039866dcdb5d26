"""When a save that failed for a passing reason is tried again, and when that ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""Pauses double from the first up to the longest."""


class SaveRetry:
    """The clock of rank 0, which decides for all ranks; on the others it is not read."""

    def __init__(
        self, give_up_after_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = give_up_after_seconds
        self._clock = clock
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._next_at = 0.0
        self.tries = 0
        """Saves that failed since the last one that did not."""

    def failed(self) -> bool:
        """Take note of a failure; return whether another try follows.

        The last try comes when the time is up, however long the pauses are by then.
        """
        now = self._clock()
        self.tries += 1
        if self._failing_since is None:
            self._failing_since, self._pause = now, FIRST_PAUSE_SECONDS
        left = self._failing_since + self._limit - now
        if left <= 0:
            return False
        self._next_at = now + min(self._pause, left)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return True

    def succeeded(self) -> None:
        """Forget the failures."""
        self._failing_since, self.tries = None, 0

    @property
    def due(self) -> bool:
        """Whether the next try is due."""
        return self._failing_since is not None and self._clock() >= self._next_at

    def wait(self, longest: float) -> bool:
        """Sleep until the next try is due, but not longer than so many seconds; return `due`."""
        time.sleep(max(0.0, min(longest, self._next_at - self._clock())))
        return self.due

    @property
    def failing_since(self) -> datetime:
        """When the first of these failures was noted."""
        assert self._failing_since is not None
        return self._moment(self._failing_since)

    @property
    def next_try_at(self) -> datetime:
        """When the next try is due."""
        return self._moment(self._next_at)

    @property
    def give_up_at(self) -> datetime:
        """When the last try is due."""
        assert self._failing_since is not None
        return self._moment(self._failing_since + self._limit)

    def _moment(self, instant: float) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=instant - self._clock())
