"""Queued jobs that need the same form a group, which holds the reason for which they wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add groups; the scheduler gives each queued job its own."""
    op.create_table(
        "demands",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
    )
    op.add_column("jobs", sa.Column("demand", sa.String(64)))
    op.create_index("ix_jobs_queue", "jobs", ["state", "demand", "priority", "queued_at", "id"])


def downgrade() -> None:
    """Drop them; the next round of the scheduler stores again why jobs wait."""
    op.drop_index("ix_jobs_queue", "jobs")
    op.drop_column("jobs", "demand")
    op.drop_table("demands")
