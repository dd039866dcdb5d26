"""An attempt shows that its saves fail, and when they are tried again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the next failure fills it, the next commit empties it."""
    op.add_column("attempts", sa.Column("save_failed", sa.Text()))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("attempts", "save_failed")
