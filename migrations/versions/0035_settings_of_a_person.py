"""Jobs keep the launch that a person ordered last, apart from the launch that follows."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

LAUNCH = ("cause", "actor", "overrides", "layout")
"""Columns of an attempt that make the launch that led to it."""
jobs = sa.table("jobs", *map(sa.column, ("id", "min_world_size", "chosen")))
attempts = sa.table("attempts", *map(sa.column, ("job_id", "number", *LAUNCH)))


def upgrade() -> None:
    """Add the column, and fill it for elastic jobs, which alone read it."""
    op.add_column("jobs", sa.Column("chosen", sa.Text()))
    by_a_person = (
        sa.select(jobs.c.id, *(attempts.c[name] for name in LAUNCH))
        .join(attempts, attempts.c.job_id == jobs.c.id)
        .where(
            jobs.c.min_world_size.is_not(None),
            attempts.c.cause.in_(("resume", "resize")),
            attempts.c.actor != "scheduler",
        )
        .order_by(attempts.c.number)
    )
    connection = op.get_bind()
    for row in connection.execute(by_a_person).all():  # the last one of a job counts
        launch = {
            "cause": row.cause,
            "actor": row.actor,
            "overrides": json.loads(row.overrides),
            "layout": json.loads(row.layout),
        }
        changed = sa.update(jobs).where(jobs.c.id == row.id)
        connection.execute(changed.values(chosen=json.dumps(launch)))


def downgrade() -> None:
    """Drop the column; the former version reads the attempts."""
    op.drop_column("jobs", "chosen")
