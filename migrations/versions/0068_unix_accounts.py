"""Unix accounts of users, attempts and operations, and the answers of nodes about them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0068"
down_revision = "0067"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; no user has an account, and no node runs jobs under accounts."""
    op.add_column("users", sa.Column("unix_account", sa.String(32)))
    op.create_index("ix_users_unix_account", "users", ["unix_account"], unique=True)
    op.add_column("nodes", sa.Column("accounts", sa.Text()))
    for table in ("attempts", "operations"):
        op.add_column(table, sa.Column("owner_id", sa.String(26)))
        op.add_column(table, sa.Column("account", sa.String(32)))
    jobs = sa.table("jobs", sa.column("id"), sa.column("owner_id"))
    operations = sa.table("operations", sa.column("job_id"), sa.column("owner_id"))
    of_job = sa.select(jobs.c.owner_id).where(jobs.c.id == operations.c.job_id).scalar_subquery()
    op.execute(operations.update().values(owner_id=of_job))
