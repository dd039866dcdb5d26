"""Columns of sources that nothing reads are dropped; the newest nodes have an index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the columns, and make the index."""
    op.drop_column("node_requests", "cancel_sent_at")
    op.drop_column("pilots", "joined_at")
    op.drop_column("pilots", "host")
    op.create_index("ix_nodes_registered_at", "nodes", ["registered_at"])


def downgrade() -> None:
    """Add the columns again, empty, and drop the index."""
    op.drop_index("ix_nodes_registered_at", "nodes")
    op.add_column("pilots", sa.Column("host", sa.String(255), nullable=False, server_default=""))
    op.add_column("pilots", sa.Column("joined_at", sa.DateTime(timezone=True)))
    op.add_column("node_requests", sa.Column("cancel_sent_at", sa.DateTime(timezone=True)))
