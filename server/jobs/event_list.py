"""The events of one job, page by page."""

from __future__ import annotations

from typing import Any

from server.context import Context
from server.database.tables import events
from server.events.tail import StoredEvent
from server.jobs.queries import check_job


def list_events(
    context: Context, job_id: str, *, before: int | None, limit: int, with_transient: bool
) -> list[dict[str, Any]]:
    """Return at most `limit` events of a job below an id, the newest first, for orjson.

    Raises:
        NotFoundError: no job has this id.
    """
    query = StoredEvent.select().where(events.c.job_id == job_id)
    if not with_transient:
        query = query.where(events.c.transient.is_(False))
    if before is not None:
        query = query.where(events.c.id < before)
    with context.database.read() as connection:
        check_job(connection, job_id)
        rows = StoredEvent.all(connection, query.order_by(events.c.id.desc()).limit(limit))
    return [row.view for row in rows]
