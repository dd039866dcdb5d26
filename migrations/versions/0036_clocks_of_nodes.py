"""Nodes have the difference between their clock and the server's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the next heartbeats fill them."""
    op.add_column("nodes", sa.Column("clock_skew_seconds", sa.Float()))
    op.add_column(
        "nodes", sa.Column("clock_is_wrong", sa.Boolean(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    """Drop them; the next heartbeats return the slots that a clock withheld."""
    op.drop_column("nodes", "clock_is_wrong")
    op.drop_column("nodes", "clock_skew_seconds")
