"""Observes ranks through a pidfd of each and the records that its rank wrapper writes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.run.limits import Number, ShortText
from trainyard.run.records import RankExit
from worker.launchers.base import Observation
from worker.node.files import read_record
from worker.node.node_store import WorkerRun
from worker.node.process_identity import has_ended, open_started_at

RECORD_SECONDS = 2.0
"""Time for a rank wrapper to record the exit of its rank; afterwards the exit counts as unseen."""


class _Start(RecordModel):
    pid: Annotated[int, Field(ge=1, lt=2**31)]
    start_time: Number


class _End(RecordModel):
    exit_code: Number | None
    signal: ShortText | None
    time: float


@dataclass
class _Rank:
    rank: int
    pid: int | None = None
    pidfd: int | None = None
    gone_at: float | None = None  # monotonic
    exit: RankExit | None = None


class RankWatch:
    """The ranks that the rank wrapper starts on this node: a pidfd of each, and their records."""

    def __init__(self, run: WorkerRun, ranks: Iterable[int]) -> None:
        self._folder = run.ranks
        self._owner = run.writer
        self._ranks = [_Rank(rank) for rank in ranks]

    def look(self) -> Observation:
        """Return which ranks have begun and which have ended."""
        for rank in self._ranks:
            if rank.pid is None:
                self._begin(rank)
            if rank.pidfd is not None and has_ended(rank.pidfd):
                os.close(rank.pidfd)
                rank.pidfd = None
                rank.gone_at = time.monotonic()
            if rank.gone_at is not None and rank.exit is None:
                self._end(rank, rank.gone_at)
        exits = [rank.exit for rank in self._ranks if rank.exit is not None]
        return Observation(
            ranks=len(self._ranks),
            pids={rank.rank: rank.pid for rank in self._ranks if rank.pid is not None},
            pidfds={rank.rank: rank.pidfd for rank in self._ranks if rank.pidfd is not None},
            exits=tuple(sorted(exits, key=lambda end: end.time)),
        )

    def _begin(self, rank: _Rank) -> None:
        start = read_record(self._folder / f"{rank.rank}.start", _Start, owner=self._owner)
        if start is None:
            return
        rank.pid = start.pid
        rank.pidfd = open_started_at(start.pid, start.start_time)
        if rank.pidfd is None:
            rank.gone_at = time.monotonic()

    def _end(self, rank: _Rank, gone_at: float) -> None:
        assert rank.pid is not None
        end = read_record(self._folder / f"{rank.rank}.end", _End, owner=self._owner)
        if end is not None:
            rank.exit = RankExit(rank=rank.rank, pid=rank.pid, **end.model_dump())
        elif time.monotonic() - gone_at > RECORD_SECONDS:
            rank.exit = RankExit(
                rank=rank.rank, pid=rank.pid, exit_code=None, signal=None, time=time.time()
            )
