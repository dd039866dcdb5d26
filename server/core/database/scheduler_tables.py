"""Tables of the scheduler: groups of the queue, projects with their slot-hours, periodic tasks."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, String, Table, Text, case, select

from server.core.database.column_types import Json, UtcDateTime
from server.core.database.schema import metadata
from server.core.database.tables import jobs

# A job names its project without a foreign key: SQLite would copy all jobs to add one. A job is
# stored under a lock on the row of its project, which a deletion takes too.
projects = Table(
    "projects",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("description", Text, nullable=False),
    Column("weight", Float, nullable=False),
    Column("max_slots", Integer),  # unlimited when null
    Column("slot_hours_per_month", Float),  # unlimited when null
    Column("created_by", String(100), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

# What ended shares used: a share is added when it ends. So the use of a month is one row and the
# live shares, however many attempts there were, and outlives the jobs.
project_usage = Table(
    "project_usage",
    metadata,
    Column("project", String(80), primary_key=True),
    Column("month", String(7), primary_key=True),  # of UTC, such as 2026-11
    Column("slot_seconds", Float, nullable=False),
)

# Queued jobs that need the same: they wait for the same reason, which is stored once.
demands = Table(
    "demands",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("shape", Json, nullable=False),
    Column("slots", Integer, nullable=False),  # of each job, those of its spare nodes included
    Column("reason", Text),  # why its jobs wait
)

reason_of_group = (
    select(demands.c.reason).where(demands.c.key == jobs.c.demand).correlate(jobs).scalar_subquery()
)
"""Why the jobs of a job's group wait, as a column of a query."""

shown_reason = case((jobs.c.demand.is_(None), jobs.c.reason), else_=reason_of_group).label("reason")
"""The reason of a job: that of its group while it is in one, else its own."""

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
