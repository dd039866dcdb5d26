"""A share has the offsets up to which its spool is stored, in place of a row for each file."""

from __future__ import annotations

import orjson
import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

KEY = ("attempt_id", "node")
shares = sa.table("attempt_nodes", *map(sa.column, (*KEY, "acknowledged")))
offsets = sa.table("spool_offsets", *map(sa.column, (*KEY, "file", "acknowledged")))


def upgrade() -> None:
    """Add the column, and fill it from the table that it replaces."""
    op.add_column(
        "attempt_nodes", sa.Column("acknowledged", sa.Text(), nullable=False, server_default="{}")
    )
    connection = op.get_bind()
    stored: dict[tuple[str, str], dict[str, int]] = {}
    for row in connection.execute(sa.select(offsets)):
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
    """Write the rows of the table again, and drop the column."""
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
        for row in connection.execute(sa.select(shares))
        for file, end in orjson.loads(row.acknowledged).items()
    ]
    if rows:
        connection.execute(sa.insert(offsets), rows)
    op.drop_column("attempt_nodes", "acknowledged")
