"""Chores store the reason for which they wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the scheduler fills it for what is queued."""
    op.add_column("chores", sa.Column("waiting", sa.Text()))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("chores", "waiting")
