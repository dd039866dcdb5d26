"""An error of one job does not keep the others from their turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy.exc import OperationalError

from server.core.database.engine import LeadLostError

logger = logging.getLogger(__name__)


class Isolation:
    """Logs what fails of one job, and leaves the job out for a while."""

    def __init__(self, clock: Callable[[], datetime], *, pause: timedelta) -> None:
        """Keep the clock, and the time for which a job is left out after an error."""
        self._clock = clock
        self._pause = pause
        self._failed: dict[str, datetime] = {}

    def left_out(self) -> Collection[str]:
        """Return the keys of what failed a short time ago."""
        now = self._clock()
        # A clock that is set back must not leave anything out for longer.
        self._failed = {
            key: at for key, at in self._failed.items() if timedelta() <= now - at < self._pause
        }
        return self._failed.keys()

    @contextmanager
    def turn(self, key: str, what: str) -> Iterator[None]:
        """Suppress an error of the block, which is logged.

        Args:
            key: what is left out after an error.
            what: the same for the log, such as `the slot-time of job j1`.

        Raises:
            LeadLostError, OperationalError: no other turn would end better.
        """
        try:
            yield
        except (LeadLostError, OperationalError):
            raise
        except Exception:
            logger.exception("%s is left out for %s", what, self._pause)
            self._failed[key] = self._clock()
