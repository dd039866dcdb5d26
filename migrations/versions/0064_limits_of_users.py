"""Limits of users in projects: of each user, and own ones of a member."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0064"
down_revision = "0063"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; no user has a limit."""
    op.add_column("projects", sa.Column("member_max_slots", sa.Integer))
    op.add_column("projects", sa.Column("member_max_running", sa.Integer))
    op.add_column("members", sa.Column("max_slots", sa.Integer))
    op.add_column("members", sa.Column("max_running", sa.Integer))
    limited = sa.text("max_slots IS NOT NULL OR max_running IS NOT NULL")
    op.create_index(
        "ix_members_limits",
        "members",
        ["project"],
        sqlite_where=limited,
        postgresql_where=limited,
    )
