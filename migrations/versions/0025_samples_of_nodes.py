"""Nodes store their samples, and which of their slots are parts of a GPU."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

ADDED = ("accelerators", "driver")
"""Fields of `hardware` that came with this revision."""
nodes = sa.table("nodes", sa.column("name"), sa.column("hardware", sa.Text))


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
    """Drop the series, the samples and the partitions, and what `hardware` has of them.

    The former version refuses fields that it does not know; a worker sends them again when it
    registers with a later version.
    """
    connection = op.get_bind()
    for name, text in connection.execute(sa.select(nodes.c.name, nodes.c.hardware)).all():
        hardware = json.loads(text)
        former = {key: value for key, value in hardware.items() if key not in ADDED}
        changed = sa.update(nodes).where(nodes.c.name == name)
        connection.execute(changed.values(hardware=json.dumps(former)))
    op.drop_table("node_points")
    op.drop_column("nodes", "partitions")
    op.drop_column("nodes", "sample")
