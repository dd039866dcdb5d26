"""Detects ranks that hang: each phase has its own limit for the time between two heartbeats."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.run.directory import STACKS_SIGNAL, Phase
from trainyard.run.records import Heartbeat
from worker.launchers.base import Observation
from worker.node.files import read_record
from worker.node.process_identity import status_field

PHASE_SECONDS = {
    Phase.STARTING: 600.0,
    Phase.BUILDING_CACHE: 600.0,  # it beats while it builds
    Phase.LOADING: 1800.0,
    Phase.COMPILING: 3600.0,
    Phase.TRAINING: 0.0,  # the job's own limit alone
    Phase.VALIDATING: 3600.0,  # it beats at each batch, but the first may have to be compiled
    Phase.SAVING: 3600.0,
    Phase.ENDING: 3600.0,
}


class HangWatch:
    """Measures, by a monotonic clock, for how long `heartbeat.json` has not changed."""

    def __init__(
        self,
        heartbeat: Path,
        *,
        hang_seconds: float,
        owner: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = heartbeat
        self._owner = owner
        self._hang_seconds = hang_seconds
        self._clock = clock
        self._changed_at = clock()
        self.heartbeat: Heartbeat | None = None
        """The last heartbeat that was seen."""

    def silence(self) -> str | None:
        """Return a message about the missing heartbeat, or None within the limit."""
        beat = read_record(self._path, Heartbeat, owner=self._owner)
        now = self._clock()
        if beat is not None and beat != self.heartbeat:
            self.heartbeat, self._changed_at = beat, now
        phase = self.heartbeat.phase if self.heartbeat else Phase.STARTING
        limit = max(PHASE_SECONDS[phase], self._hang_seconds)
        silent = now - self._changed_at
        if silent <= limit:
            return None
        step = self.heartbeat.step if self.heartbeat else 0
        return (
            f"no heartbeat for {silent:.0f} s in phase {phase} at step {step} "
            f"(limit {limit:.0f} s; guard.hang_seconds={self._hang_seconds:g})"
        )


def request_stacks(seen: Observation) -> list[int]:
    """Signal each rank that can write its stacks into its log; return those ranks."""
    signalled = []
    for rank, pidfd in seen.pidfds.items():
        if _catches(seen.pids[rank]):
            try:
                signal.pidfd_send_signal(pidfd, STACKS_SIGNAL)
            except ProcessLookupError:
                continue
            signalled.append(rank)
    return signalled


def _catches(pid: int) -> bool:
    """Return whether a process has a handler for the signal, which would end it otherwise."""
    return bool(int(status_field(pid, "SigCgt") or "0", 16) >> (STACKS_SIGNAL - 1) & 1)
