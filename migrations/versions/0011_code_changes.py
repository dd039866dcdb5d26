"""An attempt may be allowed to go on with other code of an own model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no attempt so far was allowed to."""
    op.add_column(
        "attempts",
        sa.Column("allow_code_change", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("attempts", "allow_code_change")
