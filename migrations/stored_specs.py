"""Takes fields out of stored specs: a version refuses fields that came after it."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from alembic import op

PLACES = (
    ("jobs", "spec", ()),
    ("jobs", "pending", ("overrides",)),
    ("jobs", "chosen", ("overrides",)),
    ("attempts", "overrides", ()),
    ("checkpoints", "manifest", ("spec",)),
    ("operations", "task", ("sample", "spec")),
)
"""Table and column of each text that holds specs or overrides, and the keys on the way to them."""
ROWS_AT_ONCE = 200
"""A manifest may have some megabytes."""


def forget_fields(fields: Collection[str], *, section: str | None = None) -> None:
    """Remove fields of a section, or of the spec itself, from each stored spec and its overrides.

    Args:
        fields: names of the fields.
        section: section of the spec that has them; they are the spec's own when absent.
    """
    inspector = sa.inspect(op.get_bind())
    for name, column, path in PLACES:
        if column not in {found["name"] for found in inspector.get_columns(name)}:
            continue  # it came after this revision
        _forget(name, column, path if section is None else (*path, section), fields)


def _forget(name: str, column: str, path: Collection[str], fields: Collection[str]) -> None:
    table = sa.table(name, sa.column("id", sa.String), sa.column(column, sa.Text))
    content, connection = table.c[column], op.get_bind()
    stored = sa.select(table.c.id, content).where(content.is_not(None))
    page = stored.order_by(table.c.id).limit(ROWS_AT_ONCE)
    rows = connection.execute(page).all()
    while rows:
        for row_id, text in rows:
            document = json.loads(text)
            holder: dict[str, Any] = document
            for key in path:
                holder = holder.get(key) or {}
            if holder.keys() & {*fields}:
                for field in fields:
                    holder.pop(field, None)
                changed = sa.update(table).where(table.c.id == row_id)
                connection.execute(changed.values({column: json.dumps(document)}))
        rows = connection.execute(page.where(table.c.id > rows[-1].id)).all()
