"""Appends many events in one transaction, for tests."""

from __future__ import annotations

from sqlalchemy import insert

from server.core.context import Context
from server.core.database.tables import events
from trainyard.protocol.event_kinds import EventKind


def append_many(context: Context, count: int) -> None:
    """Commit several events in one transaction."""
    row = {
        "at": context.now(),
        "kind": EventKind.NODE_ONLINE,
        "actor": "test",
        "message": "one of many",
        "data": {},
    }
    with context.database.write() as connection:
        connection.execute(insert(events), [row] * count)
