"""Names of metrics have up to 268 characters in place of 100."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.sqlite_schema import replace_in_schema

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None

series = sa.table("metric_series", sa.column("name"))


def upgrade() -> None:
    """Widen the column."""
    _widen(100, 268)


def downgrade() -> None:
    """Delete the series whose names are longer."""
    op.execute(sa.delete(series).where(sa.func.length(series.c.name) > 100))
    _widen(268, 100)


def _widen(former: int, length: int) -> None:
    if op.get_bind().dialect.name == "sqlite":
        replace_in_schema("metric_series", (f"name VARCHAR({former})", f"name VARCHAR({length})"))
    else:
        op.alter_column("metric_series", "name", type_=sa.String(length))
