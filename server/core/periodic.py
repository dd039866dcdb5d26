"""Periodic work: each round of the leader runs the tasks that are due, one after the other.

Periods and budgets use the monotonic clock, so setting the wall clock neither delays nor repeats a
task. All tasks are listed in one table (`server.app.periodic_tasks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import ClassVar

from sqlalchemy import Connection, Table, delete

from server.core.context import Context
from server.core.database.engine import LeadLostError
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import periodic_tasks
from server.core.database.upsert import insert_or_replace

Steps = Iterator[None]
"""Steps of a run, as an iterator. The run may pause after each step, and continues in the next
round.
"""
Run = Callable[[], object]
"""Function that starts a run. It returns the run's `Steps`, or any other value if the run is
complete.
"""
EACH_ROUND = 0.0


@dataclass(frozen=True)
class PeriodicTask:
    """Declaration of a periodic task."""

    name: str
    """Name of the task: a verb and a noun in snake case."""
    every_seconds: float
    """Minimum time from the start of one run to the start of the next run."""
    budget_seconds: float
    """Time after which a run that works in steps pauses until the next round. It is short because a
    long round delays every job that waits for a slot.
    """
    purpose: str
    """Purpose of the task in one sentence, for the documentation."""
    resumes: bool = True
    """Whether a paused run continues in the next round. If not, the remaining work is left to the
    next run.
    """


@dataclass(frozen=True)
class TaskTimes:
    """Counts and times of a task in the current epoch."""

    runs: int = 0
    failures: int = 0
    seconds: float = 0.0
    """Working time of the last run, over all its rounds."""
    lag_seconds: float = 0.0
    """Delay of the start of the last run."""


class PeriodicWork:
    """Periodic tasks of one epoch of the leader; no state is taken over from an earlier epoch."""

    def __init__(self, clock: Callable[[], float], runs: Mapping[PeriodicTask, Run]) -> None:
        """Take the tasks in the order in which they run; at the start all tasks are due.

        Args:
            clock: a monotonic clock, in seconds.
            runs: the functions that start a run, by task.
        """
        self._clock = clock
        self._turns = [_Turn(task, run) for task, run in runs.items()]

    def run_due(self) -> None:
        """Run each task that is due, and continue each paused run.

        A task that fails does not stop the other tasks, and runs again after its period.

        Raises:
            LeadLostError: another scheduler leads.
            ExceptionGroup: some tasks failed; all other tasks ran.
        """
        errors: list[Exception] = []
        for turn in self._turns:
            try:
                turn.take(self._clock)
            except LeadLostError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below, after the other tasks
                error.add_note(f"in the periodic task {turn.task.name}")
                errors.append(error)
        if errors:
            raise ExceptionGroup("periodic tasks failed, and run again after their periods", errors)

    @property
    def tasks(self) -> Sequence[PeriodicTask]:
        """The tasks, in the order of a round."""
        return [turn.task for turn in self._turns]

    @property
    def times(self) -> Mapping[str, TaskTimes]:
        """Counts and times by name of the task; tasks that have not run are omitted."""
        return {turn.task.name: turn.times for turn in self._turns if turn.times.runs}


class _Turn:
    """One task, and the progress of its current run."""

    def __init__(self, task: PeriodicTask, run: Run) -> None:
        self.task = task
        self.times = TaskTimes()
        self._begin = run
        self._due_at = -math.inf
        self._left: Steps | None = None
        self._seconds = self._lag = 0.0

    def take(self, clock: Callable[[], float]) -> None:
        """Start a run that is due or continue a paused run, within the budget."""
        now = clock()
        if self._left is None:
            if now < self._due_at:
                return
            self._lag = now - self._due_at if self.times.runs else 0.0
            self._due_at = now + self.task.every_seconds
            self._seconds = 0.0
        left, self._left, failures = self._left, None, self.times.failures
        try:
            if left is None:
                begun = self._begin()
                left = begun if isinstance(begun, Iterator) else None
            if left is not None and not self._is_over(left, clock, until=now + self.budget):
                self._left = left if self.task.resumes else None
        except Exception:
            failures += 1
            raise
        finally:
            self._seconds += clock() - now
            runs = self.times.runs + (self._left is None)
            self.times = TaskTimes(runs, failures, self._seconds, self._lag)

    @property
    def budget(self) -> float:
        return self.task.budget_seconds

    @staticmethod
    def _is_over(steps: Steps, clock: Callable[[], float], *, until: float) -> bool:
        """Carry out one step or more until the time `until`; return whether no step is left."""
        return all(clock() < until for _ in steps)


@dataclass(frozen=True, slots=True)
class StoredTimes(TypedRow):
    """Counts and times of one task, as the leader last stored them."""

    table: ClassVar[Table] = periodic_tasks

    name: str
    stored_at: datetime
    runs: int
    failures: int
    seconds: float
    lag_seconds: float


def store_times(context: Context, times: Mapping[str, TaskTimes]) -> None:
    """Replace all stored times by those of these tasks, by name; removed tasks disappear."""
    now = context.now()
    rows = [{"name": name, "stored_at": now, **asdict(times[name])} for name in sorted(times)]
    with context.database.write() as connection:
        connection.execute(delete(periodic_tasks).where(periodic_tasks.c.name.not_in(times)))
        insert_or_replace(connection, periodic_tasks, rows)


def read_times(connection: Connection) -> Sequence[StoredTimes]:
    """Return the counts and times of all tasks that have run, sorted by name."""
    return StoredTimes.all(connection, StoredTimes.select().order_by(periodic_tasks.c.name))
