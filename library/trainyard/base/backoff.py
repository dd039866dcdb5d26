"""Retries with growing pauses and jitter, up to a deadline.

`retry` repeats a call that blocks. A loop that does other work between two tries holds `Retries`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
Clock = Callable[[], float]
"""Returns seconds that only grow, as `time.monotonic` does."""


@dataclass(frozen=True)
class Backoff:
    """Pauses that double from the first up to the longest, in seconds."""

    first: float
    longest: float
    jitter: float = 0.25
    """Largest fraction that chance takes off a pause, so that many callers spread out."""

    def pause_after(self, tries: int) -> float:
        """Return the pause after so many tries in a row, at least one, without jitter."""
        return min(self.first * 2.0 ** min(tries - 1, 40), self.longest)

    def pauses(self) -> Iterator[float]:
        """Yield the pauses; they never end."""
        pause = self.first
        while True:
            yield pause * random.uniform(1.0 - self.jitter, 1.0)
            pause = min(2 * pause, self.longest)


class Retries:
    """Counts the failures in a row of one thing, and decides when the next try is due."""

    def __init__(
        self,
        backoff: Backoff,
        *,
        for_seconds: float = math.inf,
        tries: float = math.inf,
        clock: Clock = time.monotonic,
    ) -> None:
        """Begin without a failure.

        Args:
            backoff: the pauses between tries.
            for_seconds: time from the first failure to the last try.
            tries: tries in all, the first one included.
            clock: the clock; tests pass their own.
        """
        self._backoff = backoff
        self._for_seconds = for_seconds
        self._tries = tries
        self._clock = clock
        self._pauses = backoff.pauses()
        self.failures = 0
        """Failures since the last success."""
        self.failing_since: float | None = None
        """Instant of the first of these failures; None after a success."""
        self.next_at = 0.0
        """Instant at which the next try is due, after a failure."""

    def failed(self) -> float | None:
        """Note a failure, and return the seconds until the next try; None when none follows.

        The last try is made exactly at the deadline, however long the pauses are by then.
        """
        now = self._clock()
        self.failures += 1
        if self.failing_since is None:
            self.failing_since = now
        left = self.failing_since + self._for_seconds - now
        if left <= 0 or self.failures >= self._tries:
            return None
        pause = min(next(self._pauses), left)
        self.next_at = now + pause
        return pause

    def succeeded(self) -> None:
        """Forget the failures: the next one begins with the first pause and a new deadline."""
        if self.failing_since is not None:
            self._pauses = self._backoff.pauses()
            self.failures, self.failing_since = 0, None

    @property
    def deadline(self) -> float:
        """Instant of the last try, after a failure."""
        assert self.failing_since is not None
        return self.failing_since + self._for_seconds


def retry(
    call: Callable[[], Result],
    *,
    when: Callable[[Exception], bool],
    retries: Retries,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Return what `call` returns; repeat it after errors for which `when` is true.

    Raises:
        Exception: the error of the last try, or the first one for which `when` is false.
    """
    while True:
        try:
            result = call()
        except Exception as error:
            pause = retries.failed() if when(error) else None
            if pause is None:
                raise
        else:
            retries.succeeded()
            return result
        sleep(pause)
