"""The groups of the queue are those of one project, and its index has what their order needs."""

from __future__ import annotations

from alembic import op

from migrations.queue_groups import drop_groups

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

COLUMNS = ["state", "demand", "priority", "queued_at", "id"]


def upgrade() -> None:
    """Store the reason of each group in its jobs; the next round makes the groups anew."""
    drop_groups()
    op.drop_index("ix_jobs_queue", "jobs")
    op.create_index("ix_jobs_queue", "jobs", [*COLUMNS, "project", "world_size"])


def downgrade() -> None:
    """Do the same, with the former index."""
    drop_groups()
    op.drop_index("ix_jobs_queue", "jobs")
    op.create_index("ix_jobs_queue", "jobs", COLUMNS)
