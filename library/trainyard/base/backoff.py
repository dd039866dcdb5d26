"""Retries with growing pauses and jitter, up to a deadline.

`retry` repeats a blocking call. A loop that does other work between tries uses `Retries`.
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
"""Function that returns a monotonic time in seconds, such as `time.monotonic`."""


@dataclass(frozen=True)
class Backoff:
    """Pauses in seconds, which double from `first` up to `longest`."""

    first: float
    longest: float
    jitter: float = 0.25
    """Maximum random reduction of a pause, as a fraction of the pause. The reduction spreads the
    retries of many callers over time."""

    def pause_after(self, tries: int) -> float:
        """Return the pause after this many consecutive tries (at least 1), without jitter."""
        return min(self.first * 2.0 ** min(tries - 1, 40), self.longest)

    def pauses(self) -> Iterator[float]:
        """Yield the pauses, endlessly."""
        pause = self.first
        while True:
            yield pause * random.uniform(1.0 - self.jitter, 1.0)
            pause = min(2 * pause, self.longest)


class Retries:
    """Counts consecutive failures, and computes the time of the next try."""

    def __init__(
        self,
        backoff: Backoff,
        *,
        for_seconds: float = math.inf,
        tries: float = math.inf,
        clock: Clock = time.monotonic,
    ) -> None:
        """Start without failures.

        Args:
            backoff: pauses between tries.
            for_seconds: maximum time from the first failure to the last try.
            tries: maximum number of tries, including the first.
            clock: clock to use; tests pass their own.
        """
        self._backoff = backoff
        self._for_seconds = for_seconds
        self._tries = tries
        self._clock = clock
        self._pauses = backoff.pauses()
        self.failures = 0
        """Number of failures since the last success."""
        self.failing_since: float | None = None
        """Time of the first failure since the last success; None without a failure."""
        self.next_at = 0.0
        """Time at which the next try is due; only valid after a failure."""

    def failed(self) -> float | None:
        """Record a failure; return the seconds until the next try, or None after the last try.

        Unless `tries` ends earlier, the last try is due exactly at the deadline, even if the next
        pause would be longer.
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
        """Forget all failures, so that the next failure starts with the first pause."""
        if self.failing_since is not None:
            self._pauses = self._backoff.pauses()
            self.failures, self.failing_since = 0, None

    @property
    def deadline(self) -> float:
        """Time of the last try, unless `tries` ends earlier; only valid after a failure."""
        assert self.failing_since is not None
        return self.failing_since + self._for_seconds


def retry(
    call: Callable[[], Result],
    *,
    when: Callable[[Exception], bool],
    retries: Retries,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Call `call` until it succeeds, and return its result; retry errors that `when` accepts.

    Raises:
        Exception: the error of the last try, or the first error for which `when` returns False.
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
