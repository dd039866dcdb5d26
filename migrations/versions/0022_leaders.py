"""The lead of the scheduler is a row with an expiry and an epoch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; the first scheduler that starts inserts its row."""
    op.create_table(
        "leaders",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("holder", sa.String(255)),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_leaders"),
    )


def downgrade() -> None:
    """Drop the table; former versions lock a file or take an advisory lock."""
    op.drop_table("leaders")
