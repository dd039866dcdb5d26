"""The groups of the queue have the slots that each of their jobs takes, with its spare nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.queue_groups import drop_groups

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the next round makes the groups anew."""
    drop_groups()
    with op.batch_alter_table("demands") as batch:
        batch.add_column(sa.Column("slots", sa.Integer(), nullable=False))


def downgrade() -> None:
    """Drop it."""
    drop_groups()
    op.drop_column("demands", "slots")
