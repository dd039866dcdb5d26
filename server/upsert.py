"""INSERT that leaves an existing row alone, on both databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_if_absent(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert the row unless one of its keys is taken, and return whether it was inserted.

    A transaction that is just inserting the same key is waited for.
    """
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table).values(dict(row)).on_conflict_do_nothing()
    # Unless it is asked for, the count of an INSERT is gone once psycopg's cursor is closed.
    counted = statement.execution_options(preserve_rowcount=True)
    return connection.execute(counted).rowcount == 1


def insert_absent(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those of the rows whose keys are free, by one statement."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    values = [dict(row) for row in rows]
    connection.execute(dialect.insert(table).values(values).on_conflict_do_nothing())
