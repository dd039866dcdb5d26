"""The events table: appended in commit order, pruned of what only live views need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, update

from server.context import Context
from server.database.tables import events, jobs
from server.subject import Actor, Subject
from trainyard.protocol.event_kinds import TRANSIENT, EventData
from trainyard.protocol.rest.events import KIND_OF

TRANSIENT_KEPT = timedelta(hours=1)
MAX_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is to be stored; its data decide its kind."""

    data: EventData
    subject: Subject
    actor: Actor
    message: str


def append_event(
    context: Context,
    connection: Connection,
    event: EventData,
    *,
    subject: Subject,
    message: str,
    actor: Actor,
) -> None:
    """Store that something happened."""
    append_events(context, connection, [NewEvent(event, subject, actor, message)])


def append_events(context: Context, connection: Connection, new: Sequence[NewEvent]) -> None:
    """Store events by one statement, in order.

    From here to its end the transaction keeps other writers of events waiting, so that ids follow
    commits and a tail of the table misses nothing. So that two transactions never wait for each
    other, one that touches a job's records locks the job before its first event
    (`lifecycle.lock_job`), and touches no second job after it.
    """
    if not new:
        return
    now = context.now()
    rows = [_row(event, now) for event in new]
    changed = sorted({row["job_id"] for row in rows if row["job_id"] and not row["transient"]})
    if changed:
        connection.execute(update(jobs).where(jobs.c.id.in_(changed)).values(updated_at=now))
    context.database.lock_events(connection)
    # Without RETURNING: SQLite would insert rows of an autoincremented key one by one to sort ids.
    connection.execute(insert(events), rows)


def prune_transient(context: Context) -> int:
    """Delete the events that only live views needed, an hour after they happened."""
    limit = context.now() - TRANSIENT_KEPT
    with context.database.write() as connection:
        old = delete(events).where(events.c.transient.is_(True), events.c.at < limit)
        return connection.execute(old).rowcount


def _row(event: NewEvent, now: datetime) -> dict[str, Any]:
    kind = KIND_OF[type(event.data)]
    return {
        "at": now,
        "kind": kind.value,
        "transient": kind in TRANSIENT,
        "job_id": event.subject.job_id,
        "attempt": event.subject.attempt,
        "node": event.subject.node,
        "actor": event.actor.name,
        "message": event.message.replace("\0", "�")[:MAX_MESSAGE],  # PostgreSQL's text holds no NUL
        "data": orjson.Fragment(event.data.model_dump_json()),  # pydantic writes NaN as a string
    }
