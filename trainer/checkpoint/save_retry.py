"""When a save that failed for a passing reason is tried again, and when that ends."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from trainer.checkpoint.pending_save import PendingSave
from trainyard.base.retry import Backoff, Clock, Retries
from trainyard.protocol.manifest import SaveFailed

# No jitter: rank 0 alone decides, and users read the pauses in docs/checkpoints.md.
BACKOFF = Backoff(first=5.0, longest=300.0, jitter=0.0)


class SaveRetry:
    """The clock of rank 0, which decides for all ranks; on the others it is not read."""

    def __init__(self, give_up_after_seconds: float, *, clock: Clock = time.monotonic) -> None:
        self._retries = Retries(BACKOFF, for_seconds=give_up_after_seconds, clock=clock)
        self._clock = clock

    def failed(self) -> bool:
        """Note a failure; return whether another try follows."""
        return self._retries.failed() is not None

    def succeeded(self) -> None:
        """Forget the failures."""
        self._retries.succeeded()

    @property
    def due(self) -> bool:
        """Whether the next try is due."""
        failing = self._retries.failing_since is not None
        return failing and self._clock() >= self._retries.next_at

    def wait(self, longest: float) -> bool:
        """Sleep until the next try is due, but not longer than so many seconds; return `due`."""
        time.sleep(max(0.0, min(longest, self._retries.next_at - self._clock())))
        return self.due

    def describe(
        self, save: PendingSave, error: Exception, *, saved_step: int, step: int
    ) -> SaveFailed:
        """Return the record of the failures so far.

        Args:
            save: the one that failed last.
            error: why it did.
            saved_step: step of the last checkpoint.
            step: step of training by now.
        """
        assert self._retries.failing_since is not None
        return SaveFailed(
            kind=save.kind,
            message=str(error)[:2_000],
            tries=self._retries.failures,
            failing_since=self._moment(self._retries.failing_since),
            next_try_at=self._moment(self._retries.next_at),
            give_up_at=self._moment(self._retries.deadline),
            saved_step=saved_step,
            step=step,
        )

    def _moment(self, instant: float) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=instant - self._clock())
