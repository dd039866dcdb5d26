"""Bounds on the run time of an attempt: that of the next one of a job, and when it is over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.stored_specs import forget_fields

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; what is stored has no bound."""
    op.add_column("jobs", sa.Column("max_runtime_seconds", sa.Float(), nullable=True))
    op.add_column("jobs", sa.Column("leave_seconds", sa.Float(), nullable=True))
    op.add_column("attempts", sa.Column("runs_until", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Drop them, and the field of stored specs: attempts run on."""
    op.drop_column("attempts", "runs_until")
    op.drop_column("jobs", "leave_seconds")
    op.drop_column("jobs", "max_runtime_seconds")
    forget_fields(("max_runtime_seconds",), section="resources")
