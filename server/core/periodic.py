"""Periodic work: each round of the leader runs the due tasks, one after the other.

Periods and budgets use the monotonic clock, so setting the wall clock neither delays nor repeats a
task. All tasks stand in one table (`server.app.periodic_tasks`).
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
"""A run in steps: it may pause after each, and continues in the next round."""
Run = Callable[[], object]
"""Starts a run; returns its `Steps`, or anything else if the run is already over."""
EACH_ROUND = 0.0


@dataclass(frozen=True)
class PeriodicTask:
    """The declaration of a periodic task."""

    name: str
    """Verb and noun in snake case."""
    every_seconds: float
    """Shortest time from the start of a run to the start of the next one."""
    budget_seconds: float
    """Time after which a run in steps pauses until the next round; a long round delays every job
    that waits for a slot."""
    purpose: str
    """One sentence for the docs."""
    resumes: bool = True
    """Whether a paused run continues in the next round; otherwise the next run does the rest."""


@dataclass(frozen=True)
class TaskTimes:
    """Counts and times of a task in the present epoch."""

    runs: int = 0
    failures: int = 0
    seconds: float = 0.0
    """Work of the last run, over all of its rounds."""
    lag_seconds: float = 0.0
    """Delay of the last run's start."""


class PeriodicWork:
    """The tasks of one epoch of the leader; nothing carries over from an earlier epoch."""

    def __init__(self, clock: Callable[[], float], runs: Mapping[PeriodicTask, Run]) -> None:
        """Take the tasks in the order in which they run; all are due.

        Args:
            clock: a monotonic clock, in seconds.
            runs: for each task, the function that starts a run.
        """
        self._clock = clock
        self._turns = [_Turn(task, run) for task, run in runs.items()]

    def run_due(self) -> None:
        """Run each task that is due or paused.

        A failed task does not stop the others, and runs again after its period.

        Raises:
            LeadLostError: another scheduler leads.
            ExceptionGroup: some tasks failed; the others ran.
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

    def is_paused(self, task: PeriodicTask) -> bool:
        """Return whether the last run of a task has steps left."""
        return any(turn.is_paused for turn in self._turns if turn.task is task)

    @property
    def times(self) -> Mapping[str, TaskTimes]:
        """Times by name of task; tasks that have not run are omitted."""
        return {turn.task.name: turn.times for turn in self._turns if turn.times.runs}


class _Turn:
    """One task and the progress of its present run."""

    def __init__(self, task: PeriodicTask, run: Run) -> None:
        self.task = task
        self.times = TaskTimes()
        self._begin = run
        self._due_at = -math.inf
        self._left: Steps | None = None
        self._seconds = self._lag = 0.0

    @property
    def is_paused(self) -> bool:
        return self._left is not None

    def take(self, clock: Callable[[], float]) -> None:
        """Start a due run or continue a paused one, within the budget."""
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
        """Carry out steps, at least one, until `until`; return whether none is left."""
        return all(clock() < until for _ in steps)


@dataclass(frozen=True, slots=True)
class StoredTimes(TypedRow):
    """Times of one task that the leader last stored."""

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
    """Return the times of all tasks that have run, sorted by name."""
    return StoredTimes.all(connection, StoredTimes.select().order_by(periodic_tasks.c.name))
