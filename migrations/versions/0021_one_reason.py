"""A queued job has one reason, and the order of notices on SQLite needs no clock."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

jobs = sa.table("jobs", *(sa.column(name) for name in ("state", "reason", "demand")))
demands = sa.table("demands", sa.column("key"), sa.column("reason"))


def upgrade() -> None:
    """Store the reason that a queued job shows as its own; the next round makes the groups anew.

    The form of a group's demand has changed, so no stored one can be read.
    """
    of_group = sa.select(demands.c.reason).where(demands.c.key == jobs.c.demand).scalar_subquery()
    queued = (jobs.c.state == "queued") & jobs.c.demand.is_not(None)
    op.execute(
        sa.update(jobs).where(queued).values(reason=sa.func.coalesce(of_group, jobs.c.reason))
    )
    _drop_groups()
    numbers = op.create_table(
        "deleted_notices",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deleted_notices"),
    )
    op.execute(sa.insert(numbers).values(id=1, last_seq=0))  # below the seq of every stored notice


def downgrade() -> None:
    """Keep the reason of each job; the next round makes the groups anew."""
    op.drop_table("deleted_notices")
    _drop_groups()


def _drop_groups() -> None:
    op.execute(sa.update(jobs).where(jobs.c.demand.is_not(None)).values(demand=None))
    op.execute(sa.delete(demands))
