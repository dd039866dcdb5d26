"""Commands in running attempts have a table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

events = sa.table("events", sa.column("kind"))


def upgrade() -> None:
    """Create the table."""
    time = sa.DateTime(timezone=True)
    op.create_table(
        "shells",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("rank", sa.Integer()),
        sa.Column("argv", sa.Text(), nullable=False),
        sa.Column("terminal", sa.Text()),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("client_at", time, nullable=False),
        sa.Column("started_at", time),
        sa.Column("ended_at", time),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("failure", sa.Text()),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("output", sa.LargeBinary(), nullable=False),
        sa.Column("output_start", sa.BigInteger(), nullable=False),
        sa.Column("input", sa.LargeBinary(), nullable=False),
        sa.Column("input_start", sa.BigInteger(), nullable=False),
        sa.Column("input_ended", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_shells_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_shells"),
    )
    op.create_index("ix_shells_attempt_id_node", "shells", ["attempt_id", "node"])


def downgrade() -> None:
    """Drop it, and the events of commands, which the former version cannot read."""
    op.drop_table("shells")
    op.execute(sa.delete(events).where(events.c.kind.in_(("shell_opened", "shell_closed"))))
