"""Elastic jobs have a range of sizes, and a silent share may outlive its attempt."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.stored_specs import forget_fields

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

ADDED = ("min_world_size", "max_world_size", "shrink_after_seconds")
"""Fields of the section `resources` that came with this revision."""
JOB_COLUMNS = ("min_world_size", "max_world_size", "size_change")
events = sa.table("events", sa.column("kind"))
attempt_nodes = sa.table("attempt_nodes", sa.column("state"), sa.column("lost_at"))


def upgrade() -> None:
    """Add the columns; jobs so far have a fixed size, and no share is lost."""
    op.add_column("jobs", sa.Column("min_world_size", sa.Integer()))
    op.add_column("jobs", sa.Column("max_world_size", sa.Integer()))
    op.add_column("jobs", sa.Column("size_change", sa.Text()))
    op.add_column("attempt_nodes", sa.Column("lost_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    """Drop the columns, the fields of stored specs, and the events of the new kind.

    The former version refuses fields that it does not know, and waits for every share of an
    attempt: a lost share ends here, so its slots are free.
    """
    forget_fields(ADDED, section="resources")
    op.execute(sa.delete(events).where(events.c.kind == "size_changed"))
    lost = attempt_nodes.c.lost_at.is_not(None)
    op.execute(sa.update(attempt_nodes).where(lost).values(state="ended"))
    op.drop_column("attempt_nodes", "lost_at")
    for name in JOB_COLUMNS:
        op.drop_column("jobs", name)
