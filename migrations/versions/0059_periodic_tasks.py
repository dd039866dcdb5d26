"""Times of the scheduler's periodic tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "periodic_tasks",
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("lag_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_periodic_tasks"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("periodic_tasks")
