"""Deletes the groups of the queue: a version cannot read those of another one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

jobs = sa.table("jobs", *(sa.column(name) for name in ("state", "reason", "demand")))
demands = sa.table("demands", sa.column("key"), sa.column("reason"))


def drop_groups() -> None:
    """Store the reason of each group in its queued jobs, and delete the groups.

    The next round of the scheduler makes them anew.
    """
    of_group = sa.select(demands.c.reason).where(demands.c.key == jobs.c.demand).scalar_subquery()
    grouped = jobs.c.demand.is_not(None)
    queued = (jobs.c.state == "queued") & grouped
    op.execute(
        sa.update(jobs).where(queued).values(reason=sa.func.coalesce(of_group, jobs.c.reason))
    )
    op.execute(sa.update(jobs).where(grouped).values(demand=None))
    op.execute(sa.delete(demands))
