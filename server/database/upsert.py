"""INSERT that leaves existing rows alone, on both databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_absent(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert those of the rows whose keys are free, by one statement; return how many those were.

    A transaction that is just inserting the same key is waited for.
    """
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    values = [dict(row) for row in rows]
    statement = dialect.insert(table).values(values).on_conflict_do_nothing()
    # Without this option the count of an INSERT is gone once psycopg's cursor is closed.
    counted = statement.execution_options(preserve_rowcount=True)
    return connection.execute(counted).rowcount
