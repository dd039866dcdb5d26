"""Changes words of a table's schema as SQLite stores it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def replace_in_schema(table: str, *changes: tuple[str, str]) -> None:
    """Replace words of a table's schema: former ones by new ones.

    SQLite has no statement for it. To write the table anew would delete the rows that refer to it,
    so the stored schema is changed, as sqlite.org/lang_altertable.html describes.
    """
    connection = op.get_bind()
    schema = sa.table("sqlite_master", *map(sa.column, ("name", "type", "sql")))
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    text: sa.ColumnElement[str] = schema.c.sql
    for former, word in changes:
        text = sa.func.replace(text, former, word)
    stored = (schema.c.name == table) & (schema.c.type == "table")
    op.execute(sa.update(schema).where(stored).values(sql=text))
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
