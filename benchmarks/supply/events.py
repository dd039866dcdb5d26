"""Virtual time: a clock that is set, and scheduled events."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from server.core.context import Context
from trainyard.base.ids import make_id

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)

Action = Callable[[], None]


class Timeline:
    """A clock that only changes when it is set, with scheduled events in order of time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._later: list[tuple[float, int, Action]] = []
        self._count = 0

    def now(self) -> datetime:
        """Return the present virtual time."""
        return BEGINNING + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        """Return the virtual seconds since the start."""
        return self.seconds

    def unix(self, seconds: float) -> float:
        """Return a virtual time as seconds since 1970."""
        return BEGINNING.timestamp() + seconds

    def at(self, seconds: float, action: Action) -> None:
        """Schedule an event; it runs immediately if its time is past."""
        self._count += 1  # of two events at the same time, the first scheduled runs first
        heapq.heappush(self._later, (max(seconds, self.seconds), self._count, action))

    def after(self, seconds: float, action: Action) -> None:
        """Schedule an event after a number of seconds."""
        self.at(self.seconds + seconds, action)

    def next_at(self) -> float | None:
        """Return the time of the next event."""
        return self._later[0][0] if self._later else None

    def advance(self, until: float) -> int:
        """Set the clock, and run all events up to then at their times; return their number."""
        done = 0
        while self._later and self._later[0][0] <= until:
            at, _, action = heapq.heappop(self._later)
            self.seconds = max(self.seconds, at)
            action()
            done += 1
        self.seconds = until
        return done


@dataclass(frozen=True)
class SeededContext(Context):
    """A server context with the same ids in every run of a seed."""

    chance: random.Random = field(default_factory=random.Random)

    def new_id(self) -> str:
        """Return an id that sorts after those made earlier."""
        milliseconds = int(self.now().timestamp() * 1000)
        return make_id(milliseconds=milliseconds, entropy=self.chance.randbytes(10))
