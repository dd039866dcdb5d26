"""The time of day as a seam: leases are judged and `*_at` is written by a clock that tests move."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> datetime:
        """Return the present time, in UTC."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """Return the present time, in UTC."""
        return datetime.now(UTC)
