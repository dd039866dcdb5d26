"""The first argument of every service function: settings, database and clock, without globals.

The clock is a parameter so that tests can move it: it expires leases and writes `*_at`. Periods and
pauses within one process use its monotonic time, which setting the clock does not change.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Protocol

from server.core.database.engine import Database
from server.core.secrets import SecretsBox
from server.core.settings import Settings
from trainyard.base.ids import make_id


class Clock(Protocol):
    """A source of the present time."""

    def now(self) -> datetime:
        """Return the present time, in UTC."""

    def monotonic(self) -> float:
        """Return seconds since some moment; they only grow, even when the clock is set back."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """Return the present time, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since some moment; they only grow."""
        return time.monotonic()


@dataclass(frozen=True)
class Context:
    """Settings, database and clock of one server process."""

    settings: Settings
    database: Database
    clock: Clock

    @cached_property
    def secrets(self) -> SecretsBox:
        """Encrypts and decrypts values of `env`."""
        return SecretsBox(self.settings.key_file)

    def now(self) -> datetime:
        """Return the present time, in UTC."""
        return self.clock.now()

    def new_id(self) -> str:
        """Return an id that sorts after those made earlier."""
        milliseconds = int(self.now().timestamp() * 1000)
        return make_id(milliseconds=milliseconds, entropy=os.urandom(10))
