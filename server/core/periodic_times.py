"""Times of periodic tasks in the database: the API shows what the scheduler's process has done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import ClassVar

from sqlalchemy import Connection, Table

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import periodic_tasks
from server.core.database.upsert import insert_or_replace
from server.core.periodic import TaskTimes


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
