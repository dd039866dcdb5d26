"""The SQL statements of a block, and SQLite's query plan of one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event

from server.core.context import Context


@contextmanager
def statements(context: Context) -> Iterator[list[str]]:
    """Record the executed statements of a block; a statement with many rows counts once."""
    seen: list[str] = []
    with _heard(context, lambda statement, _: seen.append(statement)):
        yield seen


def query_plan(context: Context, table: str, call: Callable[[], object]) -> list[str]:
    """Return SQLite's query plan of the one statement that reads a table.

    Args:
        context: the server's surroundings, on SQLite.
        table: the first table of the statement's FROM.
        call: sends exactly one such statement, and any others.
    """
    seen: list[tuple[str, Any]] = []
    with _heard(context, lambda statement, parameters: seen.append((statement, parameters))):
        call()
    ((statement, parameters),) = [each for each in seen if f"FROM {table}" in each[0]]
    with context.database.read() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    return [row.detail for row in plan]


@contextmanager
def _heard(context: Context, hear: Callable[[str, Any], None]) -> Iterator[None]:
    def note(
        _connection: Connection, _cursor: object, statement: str, parameters: Any, *_: object
    ) -> None:
        hear(statement, parameters)

    event.listen(context.database.engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(context.database.engine, "before_cursor_execute", note)
