"""The groups of the queue are those of one project, and its index has what their order needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

COLUMNS = ["state", "demand", "priority", "queued_at", "id"]
jobs = sa.table("jobs", *(sa.column(name) for name in ("state", "reason", "demand")))
demands = sa.table("demands", sa.column("key"), sa.column("reason"))


def upgrade() -> None:
    """Store the reason of each group in its jobs; the next round makes the groups anew."""
    _drop_groups()
    op.drop_index("ix_jobs_queue", "jobs")
    op.create_index("ix_jobs_queue", "jobs", [*COLUMNS, "project", "world_size"])


def downgrade() -> None:
    """Do the same, with the former index."""
    _drop_groups()
    op.drop_index("ix_jobs_queue", "jobs")
    op.create_index("ix_jobs_queue", "jobs", COLUMNS)


def _drop_groups() -> None:
    of_group = sa.select(demands.c.reason).where(demands.c.key == jobs.c.demand).scalar_subquery()
    grouped = jobs.c.demand.is_not(None)
    queued = (jobs.c.state == "queued") & grouped
    op.execute(
        sa.update(jobs).where(queued).values(reason=sa.func.coalesce(of_group, jobs.c.reason))
    )
    op.execute(sa.update(jobs).where(grouped).values(demand=None))
    op.execute(sa.delete(demands))
