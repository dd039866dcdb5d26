"""Tables of the scheduler: groups of the queue, projects with their slot-hours, periodic tasks."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, String, Table, Text, case, select

from server.core.database.column_types import Json, UtcDateTime
from server.core.database.schema import choice, metadata
from server.core.database.tables import jobs
from trainyard.protocol.rest.projects import ProjectRole

# A job names its project without a foreign key, because SQLite would copy all jobs to add one.
# Instead, storing a job and deleting a project both lock the project's row.
projects = Table(
    "projects",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("description", Text, nullable=False),
    Column("weight", Float, nullable=False),
    Column("max_slots", Integer),  # null if unlimited
    Column("slot_hours_per_month", Float),  # null if unlimited
    Column("created_by", String(100), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("everyone", choice(ProjectRole)),  # role of every active person; null for no role
    # Limits of each user in the project; null if unlimited.
    Column("member_max_slots", Integer),
    Column("member_max_running", Integer),
)

# Names of deleted projects. Operations, events and slot times of these projects remain under their
# names, so a name is never given again.
retired_projects = Table("retired_projects", metadata, Column("name", String(80), primary_key=True))

# Slot time of ended shares. The use in a month is this row plus the live shares.
project_usage = Table(
    "project_usage",
    metadata,
    Column("project", String(80), primary_key=True),
    Column("month", String(7), primary_key=True),  # month in UTC, such as 2026-11
    Column("slot_seconds", Float, nullable=False),
)

# Groups of queued jobs with equal demand. They wait for the same reason, which is stored once.
demands = Table(
    "demands",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("shape", Json, nullable=False),
    Column("slots", Integer, nullable=False),  # number of slots per job, including spare nodes
    Column("reason", Text),  # reason why the jobs of the group wait
)

reason_of_group = (
    select(demands.c.reason).where(demands.c.key == jobs.c.demand).correlate(jobs).scalar_subquery()
)
"""Reason why the group of a job waits, as a column of a query."""

shown_reason = case((jobs.c.demand.is_(None), jobs.c.reason), else_=reason_of_group).label("reason")
"""Reason why a job waits or ended, as a column of a query: the reason of its group, or the job's
own reason if the job has no group.
"""

# One row per task that has run, rewritten every few seconds; counts start with the current epoch.
periodic_tasks = Table(
    "periodic_tasks",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("stored_at", UtcDateTime, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("seconds", Float, nullable=False),  # work of the last run, in seconds
    Column("lag_seconds", Float, nullable=False),  # delay of the last run's start, in seconds
)
