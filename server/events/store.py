"""The events table: appended in commit order, pruned of what only live views need."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import Connection, Row, delete, insert, update

from server.context import Context
from server.tables import events, jobs
from specs.api.event_data import Waiting
from specs.api.events import KIND_OF
from specs.events import TRANSIENT, EventData

TRANSIENT_KEPT = timedelta(hours=1)
MAX_MESSAGE = 2000


def append_event(
    context: Context,
    connection: Connection,
    event: EventData,
    *,
    message: str,
    actor: str,
    job_id: str | None = None,
    attempt: int | None = None,
    node: str | None = None,
) -> int:
    """Store that something happened, and return the event's id; its data decide its kind.

    From here to its end the transaction keeps other writers of events waiting, so that ids follow
    commits and a tail of the table misses nothing. So that two transactions never wait for each
    other, one that touches a job's records locks the job before its first event
    (`lifecycle.lock_job`), and touches no second job after it.
    """
    now = context.now()
    stored = _stored(event)
    if job_id is not None and not stored["transient"]:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(updated_at=now))
    context.database.lock_events(connection)
    row = {
        "at": now,
        "job_id": job_id,
        "attempt": attempt,
        "node": node,
        "actor": actor,
        "message": message.replace("\0", "�")[:MAX_MESSAGE],  # PostgreSQL's text holds no NUL
        **stored,
    }
    return int(connection.execute(insert(events).values(row).returning(events.c.id)).scalar_one())


def append_waiting(
    context: Context, connection: Connection, waiting: Sequence[Row[*tuple[Any, ...]]]
) -> None:
    """Store why jobs wait (`id`, `name`, `reason` of each), by one statement."""
    if not waiting:
        return
    context.database.lock_events(connection)
    now = context.now()
    rows = [
        {
            "at": now,
            "job_id": job.id,
            "actor": "scheduler",
            "message": f"{job.name} {job.reason}"[:MAX_MESSAGE],
            **_stored(Waiting(reason=job.reason)),
        }
        for job in waiting
    ]
    connection.execute(insert(events), rows)


def prune_transient(context: Context) -> int:
    """Delete the events that only live views needed, an hour after they happened."""
    limit = context.now() - TRANSIENT_KEPT
    with context.database.write() as connection:
        old = delete(events).where(events.c.transient.is_(True), events.c.at < limit)
        return connection.execute(old).rowcount


def _stored(data: EventData) -> dict[str, Any]:
    kind = KIND_OF[type(data)]
    return {
        "kind": kind.value,
        "transient": kind in TRANSIENT,
        "data": orjson.Fragment(data.model_dump_json()),  # pydantic writes NaN as a string
    }
