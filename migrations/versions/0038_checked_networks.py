"""Nodes have the time at which their network was last checked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the next attempt of several nodes checks their network."""
    op.add_column("nodes", sa.Column("network_checked_at", sa.DateTime(timezone=True)))
    op.add_column(
        "attempts", sa.Column("check_network", sa.Boolean(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_column("attempts", "check_network")
    op.drop_column("nodes", "network_checked_at")
