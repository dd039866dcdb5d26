"""What ranks of a program log is staged by step until it is folded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "rank_steps",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("staged_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_rank_steps_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "step", name="pk_rank_steps"),
    )
    op.create_table(
        "rank_progress",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_rank_progress_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name="pk_rank_progress"),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("rank_progress")
    op.drop_table("rank_steps")
