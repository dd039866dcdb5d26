"""A queued job has its expected duration, where a former attempt shows its pace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; jobs that wait have a duration from their next launch on."""
    op.add_column("jobs", sa.Column("lasts_seconds", sa.Float()))
    op.add_column("jobs", sa.Column("lasts_on", sa.String(8)))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("jobs", "lasts_on")
    op.drop_column("jobs", "lasts_seconds")
