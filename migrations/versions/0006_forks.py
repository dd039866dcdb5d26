"""Jobs that start from a checkpoint of another one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; no job of before was forked."""
    op.add_column("jobs", sa.Column("forked_from", sa.String(length=200)))
    op.add_column("jobs", sa.Column("fork_parts", sa.Text()))
    op.add_column("jobs", sa.Column("fork_step", sa.Integer()))
    op.create_index("ix_jobs_forked_from", "jobs", ["forked_from"])


def downgrade() -> None:
    """Drop them."""
    op.drop_index("ix_jobs_forked_from", "jobs")
    for name in ("fork_step", "fork_parts", "forked_from"):
        op.drop_column("jobs", name)
