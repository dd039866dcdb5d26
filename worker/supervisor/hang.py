"""Detects hanging ranks; each phase limits the time between heartbeats.

Before the limit, while all ranks live, the watch collects their positions.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from trainyard.run.directory import STACKS_SIGNAL, Phase
from trainyard.run.record_base import to_json
from trainyard.run.records import Heartbeat, RankPosition
from worker.launchers.base import Observation
from worker.node.files import read_record
from worker.node.node_store import WorkerRun
from worker.node.process_identity import status_field

PHASE_SECONDS = {
    Phase.STARTING: 600.0,
    Phase.BUILDING_CACHE: 600.0,  # the build sends heartbeats
    Phase.LOADING: 1800.0,
    Phase.COMPILING: 3600.0,
    Phase.TRAINING: 0.0,  # only the job's own limit
    Phase.VALIDATING: 3600.0,  # a heartbeat per batch, but the first batch may compile
    Phase.SAVING: 3600.0,
    Phase.ENDING: 3600.0,
}
SUSPECTED_SHARE = 0.75
"""Fraction of the limit after which positions are requested. The fraction is below 0.9, because
collectives time out at 0.9 of the limit, and a rank that has failed by then does not respond.
"""
STACKS_SECONDS = 1.0
"""Time, in seconds, for ranks to write stacks and positions."""
POSITIONS_BYTES = 1024 * 1024
"""Maximum size of a node's positions in its exit record, in bytes, because a report's size is
limited.
"""


class HangWatch:
    """Measures, on a monotonic clock, the time since `heartbeat.json` last changed.

    With `needs_heartbeat`, the measurement starts at the first heartbeat, because a program may
    write none.
    """

    def __init__(
        self,
        heartbeat: Path,
        *,
        hang_seconds: float,
        owner: int | None = None,
        needs_heartbeat: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = heartbeat
        self._owner = owner
        self._needs_heartbeat = needs_heartbeat
        self._hang_seconds = hang_seconds
        self._clock = clock
        self._changed_at = clock()
        self.heartbeat: Heartbeat | None = None
        """The last observed heartbeat."""
        self.suspected = False
        """Whether the present silence exceeds `SUSPECTED_SHARE` of its limit."""
        self.false_alarms = 0
        """Number of suspected silences that ended with a heartbeat."""

    def restart(self) -> None:
        """Restart the measurement at the start of the ranks."""
        self._changed_at = self._clock()

    def silence(self) -> str | None:
        """Return a message if the heartbeat is overdue; None within the limit."""
        beat = read_record(self._path, Heartbeat, owner=self._owner)
        now = self._clock()
        if beat is not None and beat != self.heartbeat:
            self.heartbeat, self._changed_at = beat, now
            self.false_alarms += self.suspected
        if self._needs_heartbeat and self.heartbeat is None:
            return None
        phase = self.heartbeat.phase if self.heartbeat else Phase.STARTING
        limit = max(PHASE_SECONDS[phase], self._hang_seconds)
        silent = now - self._changed_at
        self.suspected = silent > SUSPECTED_SHARE * limit
        if silent <= limit:
            return None
        step = self.heartbeat.step if self.heartbeat else 0
        return (
            f"no heartbeat for {silent:.0f} s in phase {phase} at step {step} "
            f"(limit {limit:.0f} s; guard.hang_seconds={self._hang_seconds:g})"
        )


class PositionWatch:
    """Collects positions of this node's ranks during a silence that may become a hang."""

    def __init__(self, run: WorkerRun) -> None:
        self._run = run
        self._requested_at: float | None = None  # Unix time
        self._signalled: list[int] = []
        self.positions: tuple[RankPosition, ...] = ()
        """Positions during the present silence, once read."""

    def follow(self, seen: Observation, *, suspected: bool) -> None:
        """Request positions in a suspected silence, then read them; drop them after the silence."""
        if not suspected:
            self._requested_at, self.positions = None, ()
        elif self._requested_at is None:
            self._request(seen)
        elif not self.positions and time.time() - self._requested_at >= STACKS_SECONDS:
            self.positions = self._read(seen)

    def complete(self, seen: Observation) -> list[int]:
        """Wait for the positions; return the ranks that were able to write their stacks."""
        if self._requested_at is None:
            self._request(seen)
        if not self.positions:
            if self._signalled:
                time.sleep(STACKS_SECONDS)
            self.positions = self._read(seen)
        return self._signalled

    def _request(self, seen: Observation) -> None:
        self._requested_at = time.time()
        self._signalled = request_stacks(seen)

    def _read(self, seen: Observation) -> tuple[RankPosition, ...]:
        return tuple(_bounded(self._position(seen, rank) for rank in sorted(seen.pidfds)))

    def _position(self, seen: Observation, rank: int) -> RankPosition:
        """Return the position that a rank wrote or, without one, the state of its process."""
        found = read_record(self._run.position(rank), RankPosition, owner=self._run.writer)
        assert self._requested_at is not None
        if found is not None and found.rank == rank and found.time >= self._requested_at:
            return found
        state = (status_field(seen.pids[rank], "State") or "gone").partition("(")[2].rstrip(")")
        return RankPosition(rank=rank, time=time.time(), process=state or None)


def _bounded(positions: Iterator[RankPosition]) -> Iterator[RankPosition]:
    """Yield the positions; beyond the size limit, omit the ranks of their process groups."""
    size = 0
    for position in positions:
        size += len(to_json(position))
        if size > POSITIONS_BYTES and position.collective is not None:
            without = replace(position.collective, ranks=())
            yield replace(position, collective=without)
        else:
            yield position


def request_stacks(seen: Observation) -> list[int]:
    """Signal each rank that can write its stacks to its log; return the signalled ranks."""
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
    """Return whether a process handles the signal, which would otherwise end the process."""
    return bool(int(status_field(pid, "SigCgt") or "0", 16) >> (STACKS_SIGNAL - 1) & 1)
