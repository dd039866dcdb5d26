"""One client's stream of events: what it missed, then what happens, once each and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from server.core.context import Context
from server.core.database.tables import events
from server.core.events.notices import read_notices
from server.core.events.shares import Holder
from server.core.events.tail import (
    BATCH,
    NO_TOKEN,
    StreamMessage,
    Subscription,
    Tail,
    notice_frame,
    read_frames,
)

OVERLAP = timedelta(seconds=60)
"""So far clocks of servers may differ, and a transaction may last."""
GIVEN_WAY_MILLISECONDS = 60_000
"""Pause of a client whose stream has given way to another one."""
MAX_REPLAYED = 10_000
"""Events that a client may have missed; after more, to read afresh costs less."""


async def follow(
    context: Context,
    tail: Tail,
    *,
    last_event_id: int | None,
    job_id: str | None,
    holder: Holder = NO_TOKEN,
) -> AsyncGenerator[bytes]:
    """Yield the frames of one stream, several at a time where several wait.

    It begins after `last_event_id`, or now. When that event is gone or lies too far back, or the
    client is too slow for what happens, a `reset` follows: the client reads afresh what it shows.
    One that gives way to another stream ends with a longer pause: else the two would take turns.
    """
    with tail.subscription(job_id=job_id, holder=holder) as subscription:
        # An id alone moves the client's Last-Event-ID and shows nothing.
        yield b"retry: 1000\n\n"
        sent = subscription.position
        if last_event_id is None:
            yield b"id: %d\n\n" % sent
        elif (at := await run_in_threadpool(_time_of, context, last_event_id, sent)) is not None:
            for frame in await run_in_threadpool(_changed, context, at, job_id):
                yield frame.content
            async for frame in _missed(context, last_event_id, sent, job_id):
                yield frame.content
            sent = max(sent, last_event_id)
        else:
            yield _reset(sent)
        lifetime = context.settings.stream_seconds
        async for content in _live(tail, subscription, sent=sent, lifetime=lifetime):
            yield content
        if subscription.gave_way:
            yield b"retry: %d\n\n" % GIVEN_WAY_MILLISECONDS


async def _missed(
    context: Context, after: int, up_to: int, job_id: str | None
) -> AsyncGenerator[StreamMessage]:
    while after < up_to:
        frames = await run_in_threadpool(_read_missed, context, after, up_to, job_id)
        for frame in frames:
            yield frame
        if len(frames) < BATCH:
            return
        after = frames[-1].id or up_to


async def _live(
    tail: Tail, subscription: Subscription, *, sent: int, lifetime: float
) -> AsyncGenerator[bytes]:
    deadline = asyncio.get_running_loop().time() + lifetime
    while not subscription.ended:
        try:
            async with asyncio.timeout_at(deadline):
                frames = await subscription.take()
        except TimeoutError:
            return
        if subscription.overflowed:
            yield _reset(tail.position)
            return
        # A client may come from a process whose tail was ahead. What waits goes out at once: a
        # thousand clients cost by the number of their writes.
        content = b"".join(f.content for f in frames if f.id is None or f.id > sent)
        if content:
            yield content


def _reset(position: int) -> bytes:
    return b"event: reset\nid: %d\ndata: {}\n\n" % position


def _time_of(context: Context, last_event_id: int, newest: int) -> datetime | None:
    """Return when a client's last event happened; None where what followed is not replayed."""
    if newest - last_event_id > MAX_REPLAYED:
        return None
    with context.database.read() as connection:
        return connection.scalar(select(events.c.at).where(events.c.id == last_event_id))


def _changed(context: Context, since: datetime, job_id: str | None) -> list[StreamMessage]:
    """Return the notices that a client may have missed, which the events it missed may overtake.

    Their times come from the clocks of several servers and from before the end of a transaction,
    so some are sent twice: a notice is a state, and a repeat changes nothing.
    """
    since -= OVERLAP
    with context.database.read() as connection:
        return [notice_frame(row) for row in read_notices(connection, since=since, job_id=job_id)]


def _read_missed(
    context: Context, after: int, up_to: int, job_id: str | None
) -> list[StreamMessage]:
    with context.database.read() as connection:
        return read_frames(connection, after=after, up_to=up_to, job_id=job_id)
