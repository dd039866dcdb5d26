"""Expected durations of new jobs: what the pace of attempts follows from, and which give way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; stored jobs and attempts have no digest, and give way to none."""
    op.add_column("jobs", sa.Column("pace_digest", sa.String(length=64), nullable=True))
    op.add_column("jobs", sa.Column("lasts_on_name", sa.Text(), nullable=True))
    op.add_column("attempts", sa.Column("pace_digest", sa.String(length=64), nullable=True))
    op.add_column(
        "attempts", sa.Column("expected_end_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.add_column(
        "attempts", sa.Column("gives_way", sa.Boolean(), nullable=False, server_default="0")
    )
    op.create_index("ix_attempts_pace", "attempts", ["pace_digest", "ended_at"])


def downgrade() -> None:
    """Drop them."""
    op.drop_index("ix_attempts_pace", "attempts")
    for column in ("gives_way", "expected_end_at", "pace_digest"):
        op.drop_column("attempts", column)
    for column in ("lasts_on_name", "pace_digest"):
        op.drop_column("jobs", column)
