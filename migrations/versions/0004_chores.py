"""Chores, and columns of the catalog for a checkpoint's state after its commit."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ID = sa.String(length=26)
TIME = sa.DateTime(timezone=True)
LATER: dict[str, Any] = {
    "verified": sa.Boolean(),
    "checked_at": TIME,
    "verification": sa.Text(),
    "pinned_at": TIME,
    "pinned_by": sa.String(length=100),
    "deleting_since": TIME,
}


def upgrade() -> None:
    """Add the columns and the table; no checkpoint of before was looked at."""
    for name, kind in LATER.items():
        op.add_column("checkpoints", sa.Column(name, kind))
    op.create_table(
        "chores",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("job_name", sa.String(length=80), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=200)),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("storage", sa.String(length=64)),
        sa.Column("node", sa.String(length=100)),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("sent_at", TIME),
        sa.Column("given_at", TIME),
        sa.Column("last_report_at", TIME),
        sa.Column("progress", sa.Text()),
        sa.Column("outcome", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("ended_at", TIME),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_chores_state"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_chores"),
    )
    for column in ("state", "job_id", "checkpoint_id"):
        op.create_index(f"ix_chores_{column}_id", "chores", [column, "id"])


def downgrade() -> None:
    """Drop them."""
    op.drop_table("chores")
    for name in LATER:
        op.drop_column("checkpoints", name)
