"""Failed logins are counted by all API servers together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; a count lasts a minute, so none of those in memory is carried over."""
    op.create_table(
        "failed_logins",
        sa.Column("address", sa.String(100), nullable=False),
        sa.Column("begin_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("address", name="pk_failed_logins"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("failed_logins")
