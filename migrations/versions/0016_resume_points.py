"""Attempts keep how their checkpoint was chosen, and whether other code may load it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

COLUMNS = ("allow_code_change", "parent_named")


def upgrade() -> None:
    """Add the columns; attempts so far count as allowed nothing, their checkpoints as unnamed."""
    for name in COLUMNS:
        op.add_column("attempts", sa.Column(name, sa.Boolean(), nullable=False, server_default="0"))
    op.add_column("chores", sa.Column("awaited_since", sa.DateTime(timezone=True)))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("chores", "awaited_since")
    for name in COLUMNS:
        op.drop_column("attempts", name)
