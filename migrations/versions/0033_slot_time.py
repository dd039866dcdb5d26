"""The slot-time of the cluster: what ended shares held, and what the nodes offered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

ROWS_AT_ONCE = 1_000
time = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables; fill the former, and what projects used, from the shares that have ended."""
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
        sa.Column("withheld", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("node", "since", name="pk_capacity_changes"),
    )
    _fill(holdings)
    op.create_index("ix_holdings_until", "holdings", ["until"])
    op.create_index("ix_holdings_job_id", "holdings", ["job_id"])
    unsettled = sa.text("spent IS NULL")
    op.create_index(
        "ix_holdings_unsettled",
        "holdings",
        ["job_id"],
        sqlite_where=unsettled,
        postgresql_where=unsettled,
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("capacity_changes")
    op.drop_table("holdings")


def _fill(holdings: sa.Table) -> None:
    """Copy the shares of ended attempts; each counts to the end of its attempt.

    Their projects have used them by month, unless shares are counted since a former upgrade.
    """
    usage = sa.table("project_usage", *map(sa.column, ("project", "month", "slot_seconds")))
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
    used: Counter[tuple[str, str]] = Counter()
    for rows in connection.execute(query).partitions(ROWS_AT_ONCE):
        held = [row._asdict() | {"slots": len(json.loads(row.slots))} for row in rows]
        op.bulk_insert(holdings, held)
        for share in held:
            for month, seconds in _months(share["since"], share["until"]):
                used[share["project"], month] += share["slots"] * seconds
    if connection.scalar(sa.select(sa.func.count()).select_from(usage)) == 0:
        op.bulk_insert(
            usage,
            [
                {"project": project, "month": month, "slot_seconds": seconds}
                for (project, month), seconds in used.items()
            ],
        )


def _months(since: datetime, until: datetime) -> Iterator[tuple[str, float]]:
    """Yield each calendar month (UTC) of a stretch of time, and the seconds of it in that month."""
    # SQLite returns times of UTC without a zone, PostgreSQL in the zone of the session.
    at, end = (
        time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        for time in (since, until)
    )
    while at < end:
        first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        next_month = (first + timedelta(days=31)).replace(day=1)
        yield f"{at:%Y-%m}", (min(end, next_month) - at).total_seconds()
        at = next_month
