"""INSERT that leaves existing rows alone, replaces or adds to them, on both databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_absent(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert those of the rows whose keys are free, by one statement; return how many those were.

    A transaction that is just inserting the same key is waited for.
    """
    values = [dict(row) for row in rows]
    statement = _dialect(connection).insert(table).values(values).on_conflict_do_nothing()
    # Without this option the count of an INSERT is gone once psycopg's cursor is closed.
    counted = statement.execution_options(preserve_rowcount=True)
    return connection.execute(counted).rowcount


def insert_or_replace(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **computed: Any
) -> None:
    """Insert rows, or replace all else of those with the same primary key.

    Args:
        connection: a transaction.
        table: the table.
        rows: values of the same columns each; with none nothing is done.
        computed: expressions for further columns.
    """
    if not rows:
        return
    statement = _dialect(connection).insert(table)
    if computed:
        statement = statement.values(computed)
    key = {column.name for column in table.primary_key}
    replaced = {n: statement.excluded[n] for n in (*rows[0], *computed) if n not in key}
    update = statement.on_conflict_do_update(index_elements=sorted(key), set_=replaced)
    connection.execute(update, [dict(row) for row in rows])


def insert_or_add(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, or add all else to the numbers of those with the same primary key.

    Args:
        connection: a transaction.
        table: the table.
        rows: values of the same columns each, no two with the same key; with none nothing is done.
    """
    if not rows:
        return
    statement = _dialect(connection).insert(table)
    key = {column.name for column in table.primary_key}
    sums = {name: table.c[name] + statement.excluded[name] for name in rows[0] if name not in key}
    update = statement.on_conflict_do_update(index_elements=sorted(key), set_=sums)
    connection.execute(update, [dict(row) for row in rows])


def _dialect(connection: Connection) -> Any:
    return sqlite if connection.dialect.name == "sqlite" else postgresql
