"""Periodic work: each round of the leader runs the tasks that are due, one after the other.

Periods and budgets use the monotonic clock. `server.app.periodic_tasks` has the table of all tasks.
"""

from __future__ import annotations

import inspect
import logging
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

logger = logging.getLogger(__name__)

Steps = Iterator[None]
"""Steps of a run; the run may pause after each of them until the next round."""
Run = Callable[[], object]
"""Function that starts a run. It returns the run's `Steps`, or anything else if the run is over."""
EACH_ROUND = 0.0
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.5, 10.0
"""First and longest delay of a task after failed runs, in seconds; the delay doubles with each
further failure in a row."""


@dataclass(frozen=True)
class PeriodicTask:
    """Declaration of a periodic task."""

    name: str
    """Name of the task: a verb and a noun in snake case."""
    every_seconds: float
    """Minimum time from the start of one run to the start of the next run."""
    budget_seconds: float
    """Time after which a run in steps pauses, because a long round delays every waiting job."""
    purpose: str
    """Purpose of the task in one sentence, for the documentation."""
    resumes: bool = True
    """Whether a paused run continues in the next round; if not, work that is left waits for the
    next run.
    """


@dataclass(frozen=True)
class TaskTimes:
    """Counts and times of a task in the current epoch."""

    runs: int = 0
    failures: int = 0
    seconds: float = 0.0
    """Working time of the last run, summed over the rounds that the run took."""
    lag_seconds: float = 0.0
    """Delay between the due time and the start of the last run; 0 for the first run."""


class PeriodicWork:
    """Periodic tasks of one epoch of the leader; no state is taken over from an earlier epoch."""

    def __init__(self, clock: Callable[[], float], runs: Mapping[PeriodicTask, Run]) -> None:
        """Take a function per task that starts a run of the task; tasks run in the order of `runs`.

        At the start, every task with `resumes` is due. The first runs of the other tasks are spread
        over their periods, because together they would make a long round.

        Args:
            clock: a monotonic clock, in seconds.
            runs: the functions by task.

        Raises:
            TypeError: a function is asynchronous, so its call would run nothing.
        """
        for task, run in runs.items():
            if inspect.iscoroutinefunction(run) or inspect.isasyncgenfunction(run):
                raise TypeError(f"the run of {task.name} is asynchronous")
        self._clock = clock
        spread = [task for task in runs if not task.resumes]
        parts = {task: number / len(spread) for number, task in enumerate(spread)}
        now = clock()
        self._turns = [
            _Turn(task, run, due_at=now + task.every_seconds * parts.get(task, 0.0))
            for task, run in runs.items()
        ]

    def run_due(self) -> None:
        """Run each task that is due, and continue each paused run.

        A task that fails does not stop the other tasks. The failed task runs again after its
        period, or after a delay that grows with each failure in a row.

        Raises:
            LeadLostError: another scheduler leads; the failures of earlier tasks are logged.
            ExceptionGroup: some tasks failed; all other tasks ran.
        """
        errors: dict[str, Exception] = {}
        for turn in self._turns:
            try:
                turn.take(self._clock)
            except LeadLostError:
                for name, error in errors.items():
                    logger.error("the periodic task %s failed", name, exc_info=error)
                raise
            except Exception as error:  # noqa: BLE001 - raised below, after the other tasks
                errors[turn.task.name] = error
        if errors:
            raise ExceptionGroup(f"periodic tasks failed: {', '.join(errors)}", [*errors.values()])

    @property
    def times(self) -> Mapping[str, TaskTimes]:
        """Counts and times by name of the task; tasks that have not run are omitted."""
        return {turn.task.name: turn.times for turn in self._turns if turn.times.runs}


class _Turn:
    """One task, and the progress of its current run."""

    def __init__(self, task: PeriodicTask, run: Run, *, due_at: float) -> None:
        self.task = task
        self.times = TaskTimes()
        self._begin = run
        self._due_at = due_at
        self._left: Steps | None = None
        self._seconds = self._lag = 0.0
        self._delay = 0.0  # in seconds; 0 unless the last run failed

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
            begun = self._begin() if left is None else left
            if isinstance(begun, Iterator):
                until = now + self.task.budget_seconds
                is_over = all(clock() < until for _ in begun)
                self._left = None if is_over or not self.task.resumes else begun
            self._delay = 0.0
        except Exception:
            failures += 1
            self._delay = min(max(2 * self._delay, FIRST_DELAY_SECONDS), LONGEST_DELAY_SECONDS)
            self._due_at = max(self._due_at, clock() + self._delay)
            raise
        finally:
            self._seconds += clock() - now
            runs = self.times.runs + (self._left is None)
            self.times = TaskTimes(runs, failures, self._seconds, self._lag)


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
    """Store the times by task; delete the stored times of all other tasks."""
    now = context.now()
    rows = [{"name": name, "stored_at": now, **asdict(times[name])} for name in sorted(times)]
    with context.database.write() as connection:
        connection.execute(delete(periodic_tasks).where(periodic_tasks.c.name.not_in(times)))
        insert_or_replace(connection, periodic_tasks, rows)


def read_times(connection: Connection) -> Sequence[StoredTimes]:
    """Return the counts and times of all tasks that have run, sorted by name."""
    return StoredTimes.all(connection, StoredTimes.select().order_by(periodic_tasks.c.name))
