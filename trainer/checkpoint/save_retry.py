"""Decides when a failed save is retried, by the clock of rank 0."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from trainer.checkpoint.pending_save import PendingSave
from trainyard.base.backoff import Backoff, Clock, Retries
from trainyard.protocol.manifest import SaveFailed

# No jitter, because only rank 0 decides, and because docs/checkpoint-saves.md lists the pauses for
# users.
BACKOFF = Backoff(first=5.0, longest=300.0, jitter=0.0)


class SaveRetry(Retries):
    """The failures of saves since the last commit; only rank 0 uses this object.

    Clocks of machines differ, so ranks that decided separately would not start the save together.
    """

    def __init__(self, give_up_after_seconds: float, *, clock: Clock = time.monotonic) -> None:
        super().__init__(BACKOFF, for_seconds=give_up_after_seconds, clock=clock)
        self._now = clock

    @property
    def due(self) -> bool:
        """Whether the retry is due."""
        return self.failing_since is not None and self._now() >= self.next_at

    def wait(self, longest: float) -> bool:
        """Sleep until the retry is due, for at most `longest` seconds; return `due`."""
        time.sleep(max(0.0, min(longest, self.next_at - self._now())))
        return self.due

    def describe(
        self, save: PendingSave, error: Exception, *, saved_step: int, step: int
    ) -> SaveFailed:
        """Return the record of all failures since the last commit.

        Args:
            save: last failed save.
            error: error of that save.
            saved_step: step of the last checkpoint.
            step: number of training steps so far.
        """

        def at(instant: float) -> datetime:
            return datetime.now(UTC) + timedelta(seconds=instant - self._now())

        assert self.failing_since is not None
        return SaveFailed(
            kind=save.kind,
            message=str(error)[:2_000],
            tries=self.failures,
            failing_since=at(self.failing_since),
            next_try_at=at(self.next_at),
            give_up_at=at(self.deadline),
            saved_step=saved_step,
            step=step,
        )
