"""Virtual time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A clock that only changes when it is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        """Return the present virtual time."""
        return moment(self.seconds)

    def monotonic(self) -> float:
        """Return the virtual seconds since the start."""
        return self.seconds


def moment(seconds: float) -> datetime:
    """Return the time `seconds` after the start."""
    return BEGINNING + timedelta(seconds=seconds)
