"""The shares that hold slots have an index: every round of the scheduler reads them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create it."""
    unended = sa.text("state != 'ended'")
    op.create_index(
        "ix_attempt_nodes_holding",
        "attempt_nodes",
        ["node"],
        sqlite_where=unended,
        postgresql_where=unended,
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_attempt_nodes_holding", "attempt_nodes")
