"""Rows of the audit log for tests, and the signed chain that they continue."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, select, update

from server.core.audit.audit_tables import audit_log, audit_pending
from server.core.audit.chain import rows_after, seal
from server.core.audit.request_rows import append_rows
from server.core.audit.signed_digests import sign_chain
from server.core.context import Context
from trainyard.protocol.audit_log.views import AuditOutcome


@pytest.fixture(autouse=True)
def signed_chain(context: Context) -> None:
    """Sign the ends of the empty chain, as the migration does."""
    with context.database.write() as connection:
        assert sign_chain(context, connection)


def add(context: Context, count: int = 1, **fields: Any) -> None:
    """Store rows that wait for their numbers."""
    rows = [
        {
            "at": context.now(),
            "operation": "members_put",
            "outcome": AuditOutcome.CHANGED,
            "user": "ada",
            "object": f"projects/vision/members/user-{number}",
            "before": {"role": None},
            "after": {"role": "viewer"},
            **fields,
        }
        for number in range(count)
    ]
    with context.database.write() as connection:
        append_rows(connection, rows)


def sealed(context: Context, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
    """Store and seal rows; return all sealed rows."""
    add(context, count, **fields)
    list(seal(context))
    return rows_of(context)


def rows_of(context: Context) -> list[dict[str, Any]]:
    """Return all sealed rows in order."""
    with context.database.read() as connection:
        rows = rows_after(connection, 0, limit=10**6)
        return [{str(name): value for name, value in row.items()} for row in rows]


def waiting(context: Context) -> list[dict[str, Any]]:
    """Return the rows that wait for their numbers."""
    with context.database.read() as connection:
        query = select(audit_pending.c.entry).order_by(audit_pending.c.id)
        return [dict(entry) for entry in connection.scalars(query)]


def emptied(context: Context) -> list[dict[str, Any]]:
    """Return the rows that wait for their numbers, and delete them."""
    rows = waiting(context)
    with context.database.write() as connection:
        connection.execute(delete(audit_pending))
    return rows


def alter(context: Context, number: int, **values: Any) -> None:
    """Change a sealed row, as an attacker with access to the database does."""
    with context.database.write() as connection:
        connection.execute(update(audit_log).where(audit_log.c.seq == number).values(**values))
