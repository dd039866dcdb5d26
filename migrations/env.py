"""Alembic's entry: runs the migrations on the connection of `server.core.database.migrate`."""

from __future__ import annotations

from alembic import context

from server.core.database import (  # noqa: F401 - they fill the metadata
    metric_and_log_tables,
    scheduler_tables,
    slot_tables,
    source_tables,
    tables,
)
from server.core.database.schema import metadata


def run() -> None:
    """Run on the given connection, whose transaction belongs to the caller."""
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,  # SQLite alters a table by writing it anew
    )
    with context.begin_transaction():
        context.run_migrations()


run()
