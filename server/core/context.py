"""The context that each service function gets first: settings, database and clock.

The clock determines when leases expire, and the times in the columns `*_at`; the lead of the
scheduler uses the database's clock instead. Periods and pauses within one process use the monotonic
time.
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
from server.core.subject import ADMIN_USER_ID
from trainyard.base.ids import make_id
from trainyard.protocol.user_accounts.views import BUILT_IN_USER


class Clock(Protocol):
    """A source of the current time; tests pass a clock that they can set."""

    def now(self) -> datetime:
        """Return the current time, in UTC."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment; changes of the clock have no effect."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """Return the current time, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment."""
        return time.monotonic()


@dataclass(frozen=True)
class Context:
    """Settings, database and clock of one server process."""

    settings: Settings
    database: Database
    clock: Clock

    @cached_property
    def secrets(self) -> SecretsBox:
        """The box that encrypts and decrypts values of `env`."""
        return SecretsBox(self.settings.key_file)

    @cached_property
    def user_names(self) -> dict[str, str]:
        """Known names of users by id, for `server.api.accounts.queries`; a name never changes."""
        return {ADMIN_USER_ID: BUILT_IN_USER}

    def now(self) -> datetime:
        """Return the current time, in UTC."""
        return self.clock.now()

    def new_id(self) -> str:
        """Return a new id, which sorts after the ids made in earlier milliseconds."""
        milliseconds = int(self.now().timestamp() * 1000)
        return make_id(milliseconds=milliseconds, entropy=os.urandom(10))
