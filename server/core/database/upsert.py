"""INSERT statements that skip existing rows, replace them, or add to their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Insert, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from server.core.database.rows import TypedRow

Row = TypeVar("Row", bound=TypedRow)

_INSERTS: Mapping[str, Callable[[Table], Any]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}


def insert_absent(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows with keys that the table lacks, in one statement; return their number.

    The statement waits for a concurrent transaction that inserts the same key.
    """
    # SQLAlchemy caches the statement of one row, not that of a list.
    values = dict(rows[0]) if len(rows) == 1 else [dict(row) for row in rows]
    statement = _INSERTS[connection.dialect.name](table).values(values).on_conflict_do_nothing()
    # Without this option, the row count of an INSERT is lost when psycopg closes the cursor.
    counted = statement.execution_options(preserve_rowcount=True)
    return connection.execute(counted).rowcount


def insert_or_replace(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **computed: Any
) -> None:
    """Insert rows; if the primary key of a row exists, replace the other given columns.

    Args:
        connection: a transaction.
        table: the table.
        rows: values by column; all rows have the same columns.
        computed: expressions for further columns. Pass the same objects each time, because they are
            part of the key under which the statement is cached.
    """
    if not rows:
        return
    dialect = connection.dialect.name
    statement = _replacement(dialect, table, tuple(rows[0]), tuple(computed.items()))
    connection.execute(statement, [dict(row) for row in rows])


@lru_cache  # a report replaces rows twice, and building the statement takes longer than running it
def _replacement(
    dialect: str,
    table: Table,
    given: tuple[str, ...],
    computed: tuple[tuple[str, ColumnElement[Any]], ...],
) -> Insert:
    statement = _INSERTS[dialect](table)
    if computed:
        statement = statement.values(dict(computed))
    key = {column.name for column in table.primary_key}
    names = (*given, *(name for name, _ in computed))
    replaced = {name: statement.excluded[name] for name in names if name not in key}
    update: Insert = statement.on_conflict_do_update(index_elements=sorted(key), set_=replaced)
    return update


def insert_or_add(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows; if the primary key of a row exists, add its other columns to the stored values.

    All rows have the same columns and different keys.
    """
    if not rows:
        return
    statement = _INSERTS[connection.dialect.name](table)
    key = {column.name for column in table.primary_key}
    sums = {name: table.c[name] + statement.excluded[name] for name in rows[0] if name not in key}
    update = statement.on_conflict_do_update(index_elements=sorted(key), set_=sums)
    connection.execute(update, [dict(row) for row in rows])


def inserted(row: type[Row], values: Mapping[str, Any]) -> Row:
    """Return, without a query, the row that an INSERT of `values` stores.

    A column that `values` omits has its constant Python-side default, or None.

    Each field of `row` must be a plain column. The values must have the form in which a query
    returns them.
    """
    return row(*(values.get(name, default) for name, default in _defaults(row.columns())))


@cache
def _defaults(columns: tuple[ColumnElement[Any], ...]) -> Sequence[tuple[str, Any]]:
    return [(each.name, _default(each)) for each in columns if isinstance(each, Column)]


def _default(column: Column[Any]) -> Any:
    default = column.default
    return default.arg if isinstance(default, ScalarElementColumnDefault) else None
