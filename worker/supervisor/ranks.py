"""Watches the ranks of a node: a pidfd on each, and the guard's word on how it ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.run.directory import STACKS_SIGNAL
from trainyard.run.limits import Number, ShortText
from trainyard.run.records import RankExit
from worker.node.files import read_record
from worker.node.node_store import WorkerRun
from worker.node.process_identity import has_ended, open_started_at

GUARD_SECONDS = 2.0
"""Time that a guard gets to say how its rank ended, before it counts as ended unseen."""


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
    """The ranks of this node, from their start to their end."""

    def __init__(self, run: WorkerRun, ranks: Iterable[int]) -> None:
        self._folder = run.ranks
        self._owner = run.writer
        self._ranks = [_Rank(rank) for rank in ranks]

    def look(self) -> None:
        """Take note of what began and what ended since the last look."""
        for rank in self._ranks:
            if rank.pid is None:
                self._begin(rank)
            if rank.pidfd is not None and has_ended(rank.pidfd):
                os.close(rank.pidfd)
                rank.pidfd = None
                rank.gone_at = time.monotonic()
            if rank.gone_at is not None and rank.exit is None:
                self._end(rank, rank.gone_at)

    def close(self) -> None:
        """Let go of the pidfds."""
        for rank in self._ranks:
            if rank.pidfd is not None:
                os.close(rank.pidfd)
                rank.pidfd = None

    @property
    def pidfds(self) -> list[int]:
        """A pidfd of each rank that runs: readable when it ends."""
        return [rank.pidfd for rank in self._ranks if rank.pidfd is not None]

    @property
    def pids(self) -> dict[int, int]:
        """Process id by global rank, of those that have begun."""
        return {rank.rank: rank.pid for rank in self._ranks if rank.pid is not None}

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """How ranks ended, in order of time."""
        ended = [rank.exit for rank in self._ranks if rank.exit is not None]
        return tuple(sorted(ended, key=lambda end: end.time))

    def ask_for_stacks(self) -> list[int]:
        """Have the ranks that can write their stacks into their logs; return which ones can."""
        asked = []
        for rank in self._ranks:
            if rank.pid is not None and rank.pidfd is not None and _catches(rank.pid):
                try:
                    signal.pidfd_send_signal(rank.pidfd, STACKS_SIGNAL)
                except ProcessLookupError:
                    continue
                asked.append(rank.rank)
        return asked

    @property
    def started(self) -> bool:
        """Whether any rank began."""
        return any(rank.pid is not None for rank in self._ranks)

    @property
    def unsettled(self) -> bool:
        """Whether something is about to be known: a rank that has not begun, or has just gone."""
        return any(rank.pidfd is None and rank.exit is None for rank in self._ranks)

    @property
    def over(self) -> bool:
        """Whether every rank has ended."""
        return all(rank.exit is not None for rank in self._ranks)

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
        elif time.monotonic() - gone_at > GUARD_SECONDS:
            rank.exit = RankExit(
                rank=rank.rank, pid=rank.pid, exit_code=None, signal=None, time=time.time()
            )


def _catches(pid: int) -> bool:
    """Return whether a process has a handler for the signal, which would end it otherwise."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines.splitlines() if "SigCgt:" in line), "0")
    return bool(int(caught, 16) >> (STACKS_SIGNAL - 1) & 1)


def is_abnormal(end: RankExit) -> bool:
    """Return whether a rank ended in any way but with exit code 0."""
    return end.exit_code != 0
