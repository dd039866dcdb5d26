"""Nodes store their samples, and which of their slots are parts of a GPU."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the table; a node has no sample until its next heartbeat."""
    op.add_column("nodes", sa.Column("sample", sa.Text()))
    partitions = sa.Column("partitions", sa.Text(), nullable=False, server_default="[]")
    op.add_column("nodes", partitions)
    op.create_table(
        "node_points",
        sa.Column("node", sa.String(100), nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["node"], ["nodes.name"], name="fk_node_points_node_nodes", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("node", "seconds", "start", name="pk_node_points"),
    )


def downgrade() -> None:
    """Drop the series, the samples and the partitions."""
    op.drop_table("node_points")
    op.drop_column("nodes", "partitions")
    op.drop_column("nodes", "sample")
