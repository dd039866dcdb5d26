"""Ranks that are slower than their peers, and where ranks were before a hang."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

ADDED = ("positions", "false_alarms")
"""Fields of `exit` that came with this revision."""
KINDS = ("straggler_found", "straggler_gone")
events = sa.table("events", sa.column("kind"))
notices = sa.table("notices", sa.column("kind"))
shares = sa.table(
    "attempt_nodes",
    *(sa.column(name) for name in ("attempt_id", "node")),
    sa.column("exit", sa.Text),
)


def upgrade() -> None:
    """Add the table and the column; attempts that ended before have neither."""
    op.create_table(
        "stragglers",
        sa.Column("attempt_id", sa.String(26), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(100), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("factor", sa.Float(), nullable=False),
        sa.Column("share", sa.Float(), nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("gone_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_stragglers_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", "step", name="pk_stragglers"),
    )
    op.create_index("ix_stragglers_node_found_at", "stragglers", ["node", "found_at"])
    op.add_column("attempts", sa.Column("rank_times", sa.Text()))


def downgrade() -> None:
    """Drop them, and what the former version refuses: positions of exits, events and notices."""
    connection = op.get_bind()
    for attempt_id, node, text in connection.execute(
        sa.select(shares).where(shares.c.exit.is_not(None))
    ).all():
        record = json.loads(text)
        former = {key: value for key, value in record.items() if key not in ADDED}
        mine = (shares.c.attempt_id == attempt_id) & (shares.c.node == node)
        connection.execute(sa.update(shares).where(mine).values(exit=json.dumps(former)))
    op.execute(sa.delete(events).where(events.c.kind.in_(KINDS)))
    op.execute(sa.delete(notices).where(notices.c.kind == "rank_times"))
    op.drop_column("attempts", "rank_times")
    op.drop_table("stragglers")
