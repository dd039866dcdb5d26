"""A clock that a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """A clock that a test moves; its monotonic time only grows."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._seconds = 0.0

    def now(self) -> datetime:
        """Return the present time, in UTC."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Let time pass, and return the new time."""
        self._seconds += max(seconds, 0.0)
        return self.set(seconds)

    def set(self, seconds: float) -> datetime:
        """Set the wall clock forward or back while no time passes; return the new time."""
        self._now += timedelta(seconds=seconds)
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self._seconds
