"""Jobs are searched in an index of their own: by text in the name and by tags."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    op.create_index("ix_jobs_search", "jobs", ["id", "state", "name", "tags"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_jobs_search", table_name="jobs")
