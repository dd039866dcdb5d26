"""A share has the offsets up to which its spool is stored, in place of a row for each file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

KEY = ("attempt_id", "node")
shares = sa.table("attempt_nodes", *map(sa.column, (*KEY, "state", "acknowledged")))
offsets = sa.table("spool_offsets", *map(sa.column, (*KEY, "file", "acknowledged")))
attempts = sa.table("attempts", sa.column("id"), sa.column("ended_at", sa.DateTime(timezone=True)))
TAKEN = timedelta(hours=1)
"""Time after an attempt's end in which its shares may report: 10 minutes, and room for clocks."""


def of_reporting(*columns: sa.ColumnClause[Any]) -> sa.Select[*tuple[Any, ...]]:
    """Select from the shares that may still report: no offsets of the others are read again.

    An installation has as many of those as it ever had attempts.
    """
    return (
        sa.select(*columns)
        .select_from(shares)
        .join(attempts, attempts.c.id == shares.c.attempt_id)
        .where(
            sa.or_(
                shares.c.state != "ended",
                attempts.c.ended_at.is_(None),
                attempts.c.ended_at > datetime.now(UTC) - TAKEN,
            )
        )
    )


def upgrade() -> None:
    """Add the column, and fill it from the table that it replaces for shares that may report."""
    op.add_column(
        "attempt_nodes", sa.Column("acknowledged", sa.Text(), nullable=False, server_default="{}")
    )
    connection = op.get_bind()
    stored: dict[tuple[str, str], dict[str, int]] = {}
    same = sa.and_(*(offsets.c[name] == shares.c[name] for name in KEY))
    for row in connection.execute(of_reporting(*offsets.c).join(offsets, same)):
        stored.setdefault((row.attempt_id, row.node), {})[row.file] = row.acknowledged
    if stored:
        connection.execute(
            sa.update(shares)
            .where(
                shares.c.attempt_id == sa.bindparam("attempt"), shares.c.node == sa.bindparam("on")
            )
            .values(acknowledged=sa.bindparam("text")),
            [
                {"attempt": attempt, "on": node, "text": orjson.dumps(files).decode()}
                for (attempt, node), files in stored.items()
            ],
        )
    op.drop_table("spool_offsets")


def downgrade() -> None:
    """Write the rows of the table again for shares that may report, and drop the column."""
    op.create_table(
        "spool_offsets",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("file", sa.String(length=32), nullable=False),
        sa.Column("acknowledged", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            KEY,
            [f"attempt_nodes.{name}" for name in KEY],
            name="fk_spool_offsets_attempt_id_attempt_nodes",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(*KEY, "file", name="pk_spool_offsets"),
    )
    connection = op.get_bind()
    rows = [
        {"attempt_id": row.attempt_id, "node": row.node, "file": file, "acknowledged": end}
        for row in connection.execute(of_reporting(*shares.c))
        for file, end in orjson.loads(row.acknowledged).items()
    ]
    if rows:
        connection.execute(sa.insert(offsets), rows)
    op.drop_column("attempt_nodes", "acknowledged")
