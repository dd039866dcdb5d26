"""The catalog stores the writers of a checkpoint, their time, and the stall of training."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COLUMNS: dict[str, Any] = {
    "stall_seconds": sa.Float(),
    "writers": sa.Integer(),
    "write_seconds": sa.Float(),
}


def upgrade() -> None:
    """Add the columns; the writers of earlier checkpoints are only in their manifests."""
    for name, kind in COLUMNS.items():
        op.add_column("checkpoints", sa.Column(name, kind))


def downgrade() -> None:
    """Drop them."""
    for name in COLUMNS:
        op.drop_column("checkpoints", name)
