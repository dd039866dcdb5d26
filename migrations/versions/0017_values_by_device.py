"""Attempts record the kind of their slots; specs stored without a field keep its first default."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

FIRST_DEFAULTS: dict[str, dict[str, Any]] = {
    "training": {"log_every_steps": 1},
    "compile": {"enabled": False},
    "checkpoint": {"interval_steps": 100, "interval_seconds": 0.0, "async_mode": "disabled"},
}
COLUMNS = (("jobs", "spec", ()), ("jobs", "pending", ("overrides",)), ("attempts", "overrides", ()))
"""Table and column that hold these sections, and the keys on the way to them."""
ROWS_AT_ONCE = 500


def upgrade() -> None:
    """Take each attempt's device from its nodes, and write down what was the default."""
    op.add_column(
        "attempts", sa.Column("device", sa.String(8), nullable=False, server_default="cpu")
    )
    op.execute(
        "UPDATE attempts SET device = 'cuda' WHERE id IN ("
        "SELECT attempt_nodes.attempt_id FROM attempt_nodes "
        "JOIN nodes ON nodes.name = attempt_nodes.node WHERE nodes.device = 'cuda')"
    )
    for name, column, path in COLUMNS:
        _write_down(name, column, path)


def downgrade() -> None:
    """Drop the column; the values stay written down: they hold."""
    op.drop_column("attempts", "device")


def _write_down(name: str, column: str, path: tuple[str, ...]) -> None:
    connection = op.get_bind()
    table = sa.table(name, sa.column("id", sa.String), sa.column(column, sa.Text))
    content = table.c[column]
    stored = sa.select(table.c.id, content).where(content.is_not(None))
    changed = []
    for row_id, text in connection.execute(stored).yield_per(ROWS_AT_ONCE):
        document = json.loads(text)
        holder = document
        for key in path:
            holder = holder[key]
        if _fill(holder, is_whole=column == "spec"):
            changed.append({"row": row_id, "text": json.dumps(document)})
    if changed:
        update = table.update().where(table.c.id == sa.bindparam("row"))
        connection.execute(update.values({column: sa.bindparam("text")}), changed)


def _fill(holder: dict[str, Any], *, is_whole: bool) -> bool:
    """Set the fields that are absent, and return whether there were any.

    A section that overrides leave out is that of the spec; one that a spec leaves out has defaults.
    """
    is_changed = False
    for section, defaults in FIRST_DEFAULTS.items():
        before = holder.get(section)
        if before is None and not is_whole:
            continue
        after = defaults | (before or {})
        is_changed |= after != before
        holder[section] = after
    return is_changed
