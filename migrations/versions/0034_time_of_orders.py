"""The time at which an attempt was ordered to end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the time of earlier orders is not known."""
    op.add_column("attempts", sa.Column("ordered_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("attempts", "ordered_at")
