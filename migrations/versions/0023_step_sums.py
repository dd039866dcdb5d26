"""A chunk of points stores its sum over steps, so that a ledger reads no array."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

events = sa.table("events", sa.column("kind"))


def upgrade() -> None:
    """Add the column; stored chunks keep none, and a ledger decodes them."""
    op.add_column("metric_chunks", sa.Column("step_sum", sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop the column, and the events of a kind that came after the former revision."""
    op.execute(sa.delete(events).where(events.c.kind == "priority_changed"))
    op.drop_column("metric_chunks", "step_sum")
