"""Isolation of errors: an error in the work on one job does not stop the work on other jobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy.exc import DBAPIError

from server.core.database.engine import LeadLostError

logger = logging.getLogger(__name__)

FAILED_PAUSE = timedelta(seconds=30)
"""Time for which a key is skipped after an error."""


class Pauses:
    """Keys that are skipped until their pause ends."""

    def __init__(self, clock: Callable[[], float], *, pause: timedelta = FAILED_PAUSE) -> None:
        """Take a monotonic clock, in seconds, and the length of a pause."""
        self._clock = clock
        self._pause = pause
        self._until: dict[str, float] = {}

    def begin(self, key: str) -> None:
        """Start the pause of a key."""
        self._until[key] = self._clock() + self._pause.total_seconds()

    def is_left_out(self, key: str) -> bool:
        """Return whether a key is still paused."""
        return self._until.get(key, -math.inf) > self._clock()

    def left_out(self) -> Collection[str]:
        """Return the keys that are still paused."""
        now = self._clock()
        self._until = {key: until for key, until in self._until.items() if now < until}
        return self._until.keys()


class Isolation(Pauses):
    """Logs an error in the work on one job, and skips the job for a while."""

    @contextmanager
    def turn(self, key: str, what: str) -> Iterator[None]:
        """Log and suppress an error that the block raises.

        Args:
            key: the key to skip after an error.
            what: name of the work in the log, such as `the slot-time of job j1`.

        Raises:
            LeadLostError, DBAPIError: the work on other keys would fail, too.
        """
        try:
            yield
        except Exception as error:
            if ends_task(error):
                raise
            logger.exception("%s is left out for %s", what, self._pause)
            self.begin(key)


def ends_task(error: Exception) -> bool:
    """Return whether an error stops the work on all keys: loss of the lead or of the database.

    A deadlock or a locked row concerns one key. An error without a statement means that no
    connection could be opened. An error of BEGIN comes after a wait for SQLite's lock, and each
    further key would wait as long.
    """
    if isinstance(error, DBAPIError):
        at_begin = error.statement is None or error.statement.startswith("BEGIN")
        return at_begin or error.connection_invalidated
    return isinstance(error, LeadLostError)
