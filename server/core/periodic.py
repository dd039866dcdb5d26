"""Periodic work: in each round of the leader, what is due runs, one task after the other.

Periods and budgets are of the monotonic clock: a wall clock that is set back or forward puts no
task off, and repeats none. All tasks stand in one table (`server.app.periodic_tasks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import ClassVar

from sqlalchemy import Connection, Table

from server.core.context import Context
from server.core.database.engine import LeadLostError
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import periodic_tasks
from server.core.database.upsert import insert_or_replace

Steps = Iterator[None]
"""A run in steps: it may pause after each, and continues in the next round."""
Run = Callable[[], object]
"""Begins a run; returns its `Steps`, or anything else where it is over already."""
EACH_ROUND = 0.0


@dataclass(frozen=True)
class PeriodicTask:
    """What repeats, as declared."""

    name: str
    """Verb and noun in snake case."""
    every_seconds: float
    """Time from the begin of a run to the begin of the next one, at least."""
    budget_seconds: float
    """Time of a round after which a run in steps pauses; whatever waits for a slot waits for the
    round."""
    purpose: str
    """One sentence for the docs."""
    resumes: bool = True
    """Whether a paused run continues in the next round; else the next run does the rest."""


@dataclass(frozen=True)
class TaskTimes:
    """What became of a task in the present epoch."""

    runs: int = 0
    failures: int = 0
    seconds: float = 0.0
    """Work of the last run, in all of its rounds."""
    lag_seconds: float = 0.0
    """By how much the last run began after it was due."""


class PeriodicWork:
    """The tasks of one epoch of the leader; it remembers nothing of an earlier one."""

    def __init__(self, clock: Callable[[], float], runs: Mapping[PeriodicTask, Run]) -> None:
        """Keep the tasks in the order in which they run; all of them are due.

        Args:
            clock: seconds that only grow.
            runs: begins a run of each task.
        """
        self._clock = clock
        self._turns = [_Turn(task, run) for task, run in runs.items()]

    def run_due(self) -> None:
        """Run each task that is due or paused.

        A task that fails keeps no other from its turn, and runs again after its period.

        Raises:
            LeadLostError: another scheduler leads.
            ExceptionGroup: some tasks failed; the others were carried out.
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
        """Return whether steps are left of the last run of a task."""
        return any(turn.is_paused for turn in self._turns if turn.task is task)

    @property
    def times(self) -> Mapping[str, TaskTimes]:
        """Times of each task that has run, by name."""
        return {turn.task.name: turn.times for turn in self._turns if turn.times.runs}


class _Turn:
    """One task, and where its present run is."""

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
        """Begin a run that is due, or continue one that has paused, within the budget."""
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
        """Carry out steps; return whether none is left. One is carried out in any case."""
        return all(clock() < until for _ in steps)


@dataclass(frozen=True, slots=True)
class StoredTimes(TypedRow):
    """Times of one task, as the leader stored them last."""

    table: ClassVar[Table] = periodic_tasks

    name: str
    stored_at: datetime
    runs: int
    failures: int
    seconds: float
    lag_seconds: float


def store_times(context: Context, times: Mapping[str, TaskTimes]) -> None:
    """Store the times of each task that has run, by name."""
    now = context.now()
    rows = [{"name": name, "stored_at": now, **asdict(times[name])} for name in sorted(times)]
    with context.database.write() as connection:
        insert_or_replace(connection, periodic_tasks, rows)


def read_times(connection: Connection) -> Sequence[StoredTimes]:
    """Return the times of all tasks that have run, by name."""
    return StoredTimes.all(connection, StoredTimes.select().order_by(periodic_tasks.c.name))
