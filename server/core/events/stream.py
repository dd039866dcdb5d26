"""One client's stream of events: missed events, then new ones, each once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from server.core.context import Context
from server.core.database.tables import events
from server.core.events.notices import read_notices
from server.core.events.shares import Holder
from server.core.events.tail import (
    BATCH,
    StreamMessage,
    Subscription,
    Tail,
    notice_frame,
    read_frames,
)
from server.core.visibility.job_labels import rendered
from server.core.visibility.scope import Scope

OVERLAP = timedelta(seconds=60)
"""Maximum difference between the clocks of servers, plus the maximum duration of a transaction."""
GIVEN_WAY_MILLISECONDS = 60_000
"""Delay before a client reconnects after its stream gave way to another stream."""
MAX_REPLAYED = 10_000
"""Maximum number of missed events that are replayed; for more events, a reload costs less."""


Watch = Callable[[Subscription], AbstractContextManager[object]]
"""Watches the access of a stream's client while a block runs: renews `scope`, and ends the stream.
"""


def _unwatched(_: Subscription) -> AbstractContextManager[object]:
    return nullcontext()


async def follow(
    context: Context,
    tail: Tail,
    *,
    last_event_id: int | None,
    job_id: str | None,
    holder: Holder,
    scope: Scope,
    watched: Watch = _unwatched,
) -> AsyncGenerator[bytes]:
    """Yield the content of one stream; frames that wait at the same time are sent together.

    The stream starts after the event `last_event_id`, or now if this id is None. If that event is
    deleted or too old, or if the client is too slow or sees other projects than before, a `reset`
    makes the client reload its state. A stream that gives way to another one ends with a longer
    reconnection delay, because otherwise the two would alternate. The stream has only what its
    client sees: at first by `scope`, later by the subscription's scope, which `watched` may change
    from another thread.
    """
    with (
        tail.subscription(job_id=job_id, holder=holder, scope=scope) as subscription,
        watched(subscription),
    ):
        # A message with only an id moves the client's Last-Event-ID; the client displays nothing.
        yield b"retry: 1000\n\n"
        sent = subscription.position
        if last_event_id is None:
            yield b"id: %d\n\n" % sent
        elif (at := await run_in_threadpool(_time_of, context, last_event_id, sent)) is not None:
            missed = _missed(
                context, subscription, since=at, after=last_event_id, up_to=sent, job_id=job_id
            )
            async for frame in missed:
                yield rendered(frame.content, subscription.scope)
            sent = max(sent, last_event_id)
        else:
            yield _reset(sent)
        lifetime = context.settings.stream_seconds
        async for content in _live(tail, subscription, sent=sent, lifetime=lifetime):
            yield content
        if subscription.gave_way:
            yield b"retry: %d\n\n" % GIVEN_WAY_MILLISECONDS


async def _missed(
    context: Context,
    subscription: Subscription,
    *,
    since: datetime,
    after: int,
    up_to: int,
    job_id: str | None,
) -> AsyncGenerator[StreamMessage]:
    """Yield the notices since a time, then the events after an id, as far as the client sees them.

    The access may end, and the scope may change, between two of them.
    """
    frames = await run_in_threadpool(
        _changed, context, since, job_id=job_id, scope=subscription.scope
    )
    while True:
        for frame in frames:
            if subscription.ended:
                return
            if frame.is_for(subscription.scope):
                yield frame
        if after >= up_to:
            return
        read = partial(read_frames, after=after, up_to=up_to, job_id=job_id)
        frames = await run_in_threadpool(_read, context, read, subscription.scope)
        after = frames[-1].id or up_to if len(frames) == BATCH else up_to


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
        if subscription.has_new_scope:
            subscription.has_new_scope = False
            yield _reset(tail.position)
        # Skip events that the client has from another process, whose tail was ahead. All frames go
        # out in one write, because the cost of a thousand clients is mainly that of their writes.
        content = b"".join(f.content for f in frames if f.id is None or f.id > sent)
        if content:
            yield rendered(content, subscription.scope)


def _reset(position: int) -> bytes:
    return b"event: reset\nid: %d\ndata: {}\n\n" % position


def _time_of(context: Context, last_event_id: int, newest: int) -> datetime | None:
    """Return the time of a client's last event; None if the events after it are not replayed."""
    if newest - last_event_id > MAX_REPLAYED:
        return None
    with context.database.read() as connection:
        return connection.scalar(select(events.c.at).where(events.c.id == last_event_id))


def _changed(
    context: Context, since: datetime, *, job_id: str | None, scope: Scope
) -> list[StreamMessage]:
    """Return the notices that a client with its last event at `since` may have missed.

    The caller must send these notices before the missed events. The time of a notice comes from the
    clock of one server, and is earlier than the commit. So the result begins `OVERLAP` before
    `since`, and the client gets some notices twice.
    """
    with context.database.read() as connection:
        rows = read_notices(connection, since=since - OVERLAP, job_id=job_id, scope=scope)
    return [notice_frame(row) for row in rows]


def _read(
    context: Context, read: Callable[..., list[StreamMessage]], scope: Scope
) -> list[StreamMessage]:
    with context.database.read() as connection:
        return read(connection, scope=scope)
