"""Nodes store the protocol of their worker, which decides the form of the server's messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the workers that registered so far use protocol 2."""
    op.add_column("nodes", sa.Column("protocol", sa.Integer(), nullable=False, server_default="2"))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("nodes", "protocol")
