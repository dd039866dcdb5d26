"""Jobs stored before `checkpoint.keep_latest_k` existed keep all checkpoints, as they did."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

FIELD = "keep_latest_k"
COLUMNS = (("jobs", "spec", ()), ("jobs", "pending", ("overrides",)), ("attempts", "overrides", ()))
"""Table and column that hold a section `checkpoint`, and the keys on the way to it."""


def upgrade() -> None:
    """Write down what was the default, in rows that do not have the field."""
    connection = op.get_bind()
    for name, column, path in COLUMNS:
        table = sa.table(name, sa.column("id", sa.String), sa.column(column, sa.Text))
        content = table.c[column]
        lacking = content.contains('"checkpoint"') & ~content.contains(f'"{FIELD}"')
        rows = connection.execute(sa.select(table.c.id, content).where(lacking)).all()
        for row_id, text in rows:
            document = json.loads(text)
            holder = document
            for key in path:
                holder = holder[key]
            if holder.get("checkpoint") is None:
                continue
            holder["checkpoint"][FIELD] = 0
            connection.execute(
                table.update().where(table.c.id == row_id).values({column: json.dumps(document)})
            )


def downgrade() -> None:
    """Change nothing: the stored field keeps the former meaning."""
