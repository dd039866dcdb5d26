"""The events table, which is the audit log: in commit order, kept as long as the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, cast, func, insert, select, update

from server.core.context import Context
from server.core.database.engine import EVENTS_LOCK
from server.core.database.tables import events, jobs
from server.core.subject import Actor, Subject
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.rest.events import KIND_OF

MAX_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class NewEvent:
    """A new event, to be stored; the type of its data determines its kind."""

    data: EventData
    actor: Actor
    subject: Subject
    message: str


_OF_JOB = select(jobs.c.project).where(jobs.c.id == bindparam("of_event_job")).scalar_subquery()
_INSERT = insert(events).values(
    project=func.coalesce(cast(bindparam("of_project"), events.c.project.type), _OF_JOB)
)
"""The project of an event is stored, because the event may outlive its job."""
_TOUCH = update(jobs).where(jobs.c.id == bindparam("of_job"))
_TOUCH_AND_LOCK = _TOUCH.returning(func.pg_advisory_xact_lock(EVENTS_LOCK))
"""On PostgreSQL, the update of the job and `Database.lock_events` in one message."""


def append_event(context: Context, connection: Connection, event: NewEvent) -> None:
    """Store one event."""
    append_events(context, connection, [event])


def append_events(
    context: Context, connection: Connection, new: Sequence[NewEvent], *, touched: bool = False
) -> None:
    """Store events in the given order, with as many statements as for a single event.

    Other writers of events wait until the transaction ends, so that ids are in commit order and a
    tail of the table misses no event. To prevent deadlocks, a transaction that changes a job's
    records locks the job before its first event (`lifecycle.lock_job`), and changes no other job
    after that event.

    `touched` is whether the transaction has already set `updated_at` of the events' jobs.
    """
    now = context.now()
    job_ids = {event.subject.job_id for event in new} - {None}
    locked = False
    if len(job_ids) == 1 and not touched:
        touch = {"of_job": job_ids.pop(), "updated_at": now}
        if context.database.is_sqlite:
            connection.execute(_TOUCH, touch)
        else:  # a deleted job has no row, so the statement then takes no lock
            locked = connection.execute(_TOUCH_AND_LOCK, touch).first() is not None
    elif job_ids and not touched:
        connection.execute(update(jobs).where(jobs.c.id.in_(job_ids)).values(updated_at=now))
    if not locked:
        context.database.lock_events(connection)
    connection.execute(_INSERT, [_row(event, now) for event in new])


def _row(event: NewEvent, now: datetime) -> dict[str, Any]:
    return {
        "at": now,
        "kind": KIND_OF[type(event.data)].value,
        "job_id": event.subject.job_id,
        "of_event_job": event.subject.job_id,
        "of_project": event.subject.project,
        "attempt": event.subject.attempt,
        "node": event.subject.node,
        "actor": event.actor.name,
        "user_name": event.actor.user_name,
        # PostgreSQL's text cannot contain NUL
        "message": event.message.replace("\0", "�")[:MAX_MESSAGE],
        "data": orjson.Fragment(event.data.model_dump_json()),  # pydantic writes NaN as a string
    }
