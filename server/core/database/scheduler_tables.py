"""Tables of the scheduler: groups of the queue, projects with their slot-hours, periodic tasks."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, String, Table, Text, case, select

from server.core.database.column_types import Json, UtcDateTime
from server.core.database.schema import metadata
from server.core.database.tables import jobs

# A job names its project without a foreign key: SQLite would copy all jobs to add one. Storing a
# job and deleting a project both lock the project's row.
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

# Slot time of ended shares, added when a share ends. So the use of a month is one row plus the live
# shares, however many attempts ran, and outlives the jobs.
project_usage = Table(
    "project_usage",
    metadata,
    Column("project", String(80), primary_key=True),
    Column("month", String(7), primary_key=True),  # of UTC, such as 2026-11
    Column("slot_seconds", Float, nullable=False),
)

# Groups of queued jobs with equal demand: they wait for the same reason, which is stored once.
demands = Table(
    "demands",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("shape", Json, nullable=False),
    Column("slots", Integer, nullable=False),  # of each job, including those of its spare nodes
    Column("reason", Text),  # why its jobs wait
)

reason_of_group = (
    select(demands.c.reason).where(demands.c.key == jobs.c.demand).correlate(jobs).scalar_subquery()
)
"""The reason for which a job's group waits, as a column of a query."""

shown_reason = case((jobs.c.demand.is_(None), jobs.c.reason), else_=reason_of_group).label("reason")
"""The reason of a job: its group's while it is in a group, else its own."""

# One row per task that has run, rewritten every few seconds; counts start with the present epoch.
periodic_tasks = Table(
    "periodic_tasks",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("stored_at", UtcDateTime, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("seconds", Float, nullable=False),  # work of the last run
    Column("lag_seconds", Float, nullable=False),  # delay of its start
)
