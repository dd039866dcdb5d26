"""The statements that a block sends to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event

from server.context import Context


@contextmanager
def statements(context: Context) -> Iterator[list[str]]:
    """Gather what is executed while the block runs; a statement with many rows counts once."""
    seen: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(context.database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(context.database.engine, "before_cursor_execute", note)
