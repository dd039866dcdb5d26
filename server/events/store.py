"""The events table: appended in commit order, pruned of what only live views need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, update

from server.context import Context
from server.tables import events, jobs
from specs.events import TRANSIENT, EventKind

TRANSIENT_KEPT = timedelta(hours=1)
MAX_MESSAGE = 2000


def append_event(
    context: Context,
    connection: Connection,
    *,
    kind: EventKind,
    message: str,
    actor: str,
    job_id: str | None = None,
    attempt: int | None = None,
    node: str | None = None,
    data: Mapping[str, Any] | None = None,
    transient: bool = False,
) -> int:
    """Store that something happened, and return the event's id.

    From here to its end the transaction keeps other writers of events waiting, so that ids follow
    commits and a tail of the table misses nothing. So that two transactions never wait for each
    other, one that touches a job's records locks the job before its first event
    (`lifecycle.lock_job`), and touches no second job after it.
    """
    now = context.now()
    short_lived = transient or kind in TRANSIENT
    if job_id is not None and not short_lived:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(updated_at=now))
    context.database.lock_events(connection)
    row = {
        "at": now,
        "kind": kind.value,
        "transient": short_lived,
        "job_id": job_id,
        "attempt": attempt,
        "node": node,
        "actor": actor,
        "message": message.replace("\0", "�")[:MAX_MESSAGE],  # PostgreSQL's text holds no NUL
        "data": dict(data or {}),
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
            "kind": EventKind.WAITING.value,
            "transient": True,
            "job_id": job.id,
            "actor": "scheduler",
            "message": f"{job.name} {job.reason}"[:MAX_MESSAGE],
            "data": {"reason": job.reason},
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
