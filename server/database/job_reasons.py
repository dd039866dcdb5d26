"""Why queued jobs wait, as columns of queries."""

from __future__ import annotations

from sqlalchemy import case, select

from server.database.queue_tables import demands
from server.database.tables import jobs

reason_of_group = (
    select(demands.c.reason).where(demands.c.key == jobs.c.demand).correlate(jobs).scalar_subquery()
)
"""Why the jobs of a job's group wait."""

shown_reason = case((jobs.c.demand.is_(None), jobs.c.reason), else_=reason_of_group).label("reason")
"""The reason of a job: that of its group while it is in one, else its own."""
