"""An error of one job does not keep the others from their turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy.exc import OperationalError

from server.core.database.engine import LeadLostError

logger = logging.getLogger(__name__)


class Pauses:
    """Keys that are left out for a while."""

    def __init__(self, clock: Callable[[], float], *, pause: timedelta) -> None:
        """Keep a clock whose seconds only grow, and the length of each pause."""
        self._clock = clock
        self._pause = pause
        self._until: dict[str, float] = {}

    def begin(self, key: str) -> None:
        """Leave out a key from now on."""
        self._until[key] = self._clock() + self._pause.total_seconds()

    def left_out(self) -> Collection[str]:
        """Return the keys whose pause is not over."""
        now = self._clock()
        self._until = {key: until for key, until in self._until.items() if now < until}
        return self._until.keys()


class Isolation(Pauses):
    """Logs what fails of one job, and leaves the job out for a while."""

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
            self.begin(key)
