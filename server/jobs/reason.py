"""Why a job waits, or why it ended: a queued job waits for the reason of its group."""

from __future__ import annotations

from sqlalchemy import case, func, select

from server.database.tables import demands, jobs
from trainyard.protocol.states import JobState

_group = select(demands.c.reason).where(demands.c.key == jobs.c.demand).scalar_subquery()

shown_reason = case(
    (jobs.c.state == JobState.QUEUED, func.coalesce(_group, jobs.c.reason)), else_=jobs.c.reason
).label("reason")
"""The reason that people see, as a column of a query of `jobs`."""
