"""Alembic's entry point: runs migrations on the connection of `server.core.database.migrate`."""

from __future__ import annotations

from alembic import context

from server.core.audit import audit_tables  # noqa: F401
from server.core.database import (  # noqa: F401 - these modules fill the metadata
    metric_and_log_tables,
    scheduler_tables,
    slot_tables,
    source_tables,
    tables,
)
from server.core.database.schema import metadata
from server.core.people import member_tables, secret_tables, user_tables  # noqa: F401


def run() -> None:
    """Run the migrations in the transaction of the caller's connection."""
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,  # SQLite alters a table by copying it
    )
    with context.begin_transaction():
        context.run_migrations()


run()
