"""Drained nodes store who drained them and what becomes of their attempts (also preemption)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

FINISH = '{"running": "finish", "by": "unknown", "at": "1970-01-01T00:00:00Z"}'


def upgrade() -> None:
    """Keep what was drained so, as it was: what runs there goes on."""
    op.add_column("nodes", sa.Column("drain", sa.Text()))
    op.add_column("attempts", sa.Column("preempted", sa.Text()))
    nodes = sa.table("nodes", sa.column("drain", sa.Text), sa.column("draining", sa.Boolean))
    op.execute(nodes.update().where(nodes.c.draining.is_(True)).values(drain=FINISH))
    op.drop_column("nodes", "draining")


def downgrade() -> None:
    """Remember only whether a node is drained."""
    op.add_column(
        "nodes", sa.Column("draining", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    nodes = sa.table("nodes", sa.column("drain", sa.Text), sa.column("draining", sa.Boolean))
    op.execute(nodes.update().where(nodes.c.drain.is_not(None)).values(draining=True))
    op.drop_column("nodes", "drain")
    op.drop_column("attempts", "preempted")
