"""Notices have a table of their own; the events table keeps what belongs to the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; rows that live views alone needed go, as they did after an hour."""
    op.create_table(
        "notices",
        sa.Column("job_id", sa.String(26), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("part", sa.String(200), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", sa.Integer()),
        sa.Column("node", sa.String(100)),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", "part", name="pk_notices"),
    )
    op.create_index("ix_notices_seq", "notices", ["seq"])
    op.create_index("ix_notices_at", "notices", ["at"])
    op.drop_index("ix_events_transient_at", "events")
    op.drop_index("ix_events_job_id_transient_id", "events")
    events = sa.table("events", sa.column("transient", sa.Boolean))
    op.execute(events.delete().where(events.c.transient.is_(sa.true())))
    op.drop_column("events", "transient")
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])


def downgrade() -> None:
    """Keep every event as a durable one; notices are published anew by their sources."""
    op.drop_index("ix_events_job_id_id", "events")
    op.add_column(
        "events", sa.Column("transient", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_index("ix_events_job_id_transient_id", "events", ["job_id", "transient", "id"])
    op.create_index("ix_events_transient_at", "events", ["transient", "at"])
    op.drop_table("notices")
