"""Attempts store the windows of the stream that are skipped up to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; attempts of before left nothing out."""
    column = sa.Column("skip", sa.Text(), nullable=False, server_default="[]")
    op.add_column("attempts", column)


def downgrade() -> None:
    """Drop it."""
    op.drop_column("attempts", "skip")
