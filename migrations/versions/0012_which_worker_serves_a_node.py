"""A node is served by one worker, of one data folder and boot; each share keeps its claimer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TABLES = ("nodes", "attempt_nodes")


def upgrade() -> None:
    """Add the columns; registrations and claims fill them."""
    for table in TABLES:
        op.add_column(table, sa.Column("worker", sa.Text()))


def downgrade() -> None:
    """Drop them."""
    for table in TABLES:
        op.drop_column(table, "worker")
