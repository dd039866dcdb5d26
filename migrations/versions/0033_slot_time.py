"""The slot-time of the cluster: what ended shares held, and what the nodes offered."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

ROWS_AT_ONCE = 1_000
time = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables, and fill the former from the shares that have ended."""
    holdings = op.create_table(
        "holdings",
        sa.Column("attempt_id", sa.String(26), nullable=False),
        sa.Column("node", sa.String(100), nullable=False),
        sa.Column("job_id", sa.String(26), nullable=False),
        sa.Column("job_name", sa.String(80), nullable=False),
        sa.Column("project", sa.String(80), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("since", time, nullable=False),
        sa.Column("until", time, nullable=False),
        sa.Column("spent", sa.Text()),
        sa.PrimaryKeyConstraint("attempt_id", "node", name="pk_holdings"),
    )
    op.create_table(
        "capacity_changes",
        sa.Column("node", sa.String(100), nullable=False),
        sa.Column("since", time, nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("online", sa.Boolean(), nullable=False),
        sa.Column("takes_jobs", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("node", "since", name="pk_capacity_changes"),
    )
    _fill(holdings)
    op.create_index("ix_holdings_until", "holdings", ["until"])
    op.create_index("ix_holdings_job_id", "holdings", ["job_id"])


def downgrade() -> None:
    """Drop them."""
    op.drop_table("capacity_changes")
    op.drop_table("holdings")


def _fill(holdings: sa.Table) -> None:
    """Copy the shares of ended attempts; each counts to the end of its attempt."""
    shares = sa.table("attempt_nodes", *map(sa.column, ("attempt_id", "node", "slots")))
    attempts = sa.table(
        "attempts",
        *map(sa.column, ("id", "job_id", "number")),
        sa.column("created_at", time),
        sa.column("ended_at", time),
    )
    jobs = sa.table("jobs", *map(sa.column, ("id", "name", "project")))
    query = (
        sa.select(
            shares.c.attempt_id,
            shares.c.node,
            attempts.c.job_id,
            jobs.c.name.label("job_name"),
            jobs.c.project,
            attempts.c.number.label("attempt"),
            shares.c.slots,
            attempts.c.created_at.label("since"),
            attempts.c.ended_at.label("until"),
        )
        .join(attempts, attempts.c.id == shares.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempts.c.ended_at.is_not(None))
    )
    connection = op.get_bind()
    for rows in connection.execute(query).partitions(ROWS_AT_ONCE):
        op.bulk_insert(
            holdings, [row._asdict() | {"slots": len(json.loads(row.slots))} for row in rows]
        )
