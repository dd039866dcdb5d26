"""Tables of the scheduler's process: what became of its periodic tasks."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, String, Table

from server.core.database.column_types import UtcDateTime
from server.core.database.schema import metadata

# A row for each task that has run, written anew every few seconds; counts are of the present epoch.
periodic_tasks = Table(
    "periodic_tasks",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("stored_at", UtcDateTime, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("seconds", Float, nullable=False),  # work of the last run
    Column("lag_seconds", Float, nullable=False),  # by how much it began late
)
