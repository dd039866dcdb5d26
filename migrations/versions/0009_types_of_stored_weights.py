"""The catalog stores the type of the stored weights."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

AT_ONCE = 1000


def upgrade() -> None:
    """Add the column, and take it from the manifests that the catalog holds."""
    op.add_column("checkpoints", sa.Column("dtype", sa.String(length=16)))
    table = sa.table(
        "checkpoints",
        sa.column("id", sa.String),
        sa.column("manifest", sa.Text),
        sa.column("dtype", sa.String),
    )
    connection = op.get_bind()
    stored: dict[str, list[str]] = {}
    for checkpoint_id, manifest in connection.execute(sa.select(table.c.id, table.c.manifest)):
        stored.setdefault(json.loads(manifest)["param_dtype"], []).append(checkpoint_id)
    for dtype, ids in stored.items():
        for start in range(0, len(ids), AT_ONCE):
            some = table.c.id.in_(ids[start : start + AT_ONCE])
            connection.execute(table.update().where(some).values(dtype=dtype))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("checkpoints", "dtype")
