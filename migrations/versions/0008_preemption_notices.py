"""Nodes store the preemption notice of their machine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the next heartbeat of each node fills it."""
    op.add_column("nodes", sa.Column("notice", sa.Text()))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("nodes", "notice")
