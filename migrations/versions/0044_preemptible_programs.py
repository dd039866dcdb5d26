"""A job that runs a program leaves for others only where its spec allows it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the built-in trainer always saves before it leaves."""
    op.add_column(
        "jobs",
        sa.Column("preemptible", sa.Boolean(), nullable=False, server_default="1"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("jobs", "preemptible")
