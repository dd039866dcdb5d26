"""The tail of events and notices, without HTTP: slow, many or no clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from server.core.context import Context
from server.core.events.notices import notify_all
from server.core.events.shares import Holder
from server.core.events.stream import follow
from server.core.events.tail import (
    LIMITS,
    QUEUE,
    StreamMessage,
    Subscription,
    Tail,
    read_frames,
)
from server.core.subject import Subject
from server.core.visibility.scope import SYSTEM_SCOPE, Scope
from tests.server.api.serving import until
from tests.server.core.events.appended import append_many
from trainyard.protocol.rest.event_data import Waiting


def holder(number: int, address: str | None = None) -> Holder:
    return Holder(f"token-{number}", address)


def opened(context: Context, tail: Tail) -> AsyncGenerator[bytes]:
    return follow(
        context, tail, last_event_id=None, job_id=None, holder=holder(1), scope=SYSTEM_SCOPE
    )


def test_a_slow_client_is_dropped_with_a_reset_and_delays_no_other(context: Context) -> None:
    tail = Tail(context)
    tail.start()
    try:
        asyncio.run(_one_slow_one_quick(context, tail))
    finally:
        tail.stop()


async def _one_slow_one_quick(context: Context, tail: Tail) -> None:
    slow = opened(context, tail)
    quick = opened(context, tail)
    for stream in (slow, quick):
        assert [await anext(stream) for _ in range(2)] == [b"retry: 1000\n\n", b"id: 0\n\n"]
    quick = frames(quick)
    waiting = asyncio.ensure_future(anext(slow))  # waits once, takes the new events, no more
    await asyncio.to_thread(append_many, context, 10)
    assert (await waiting).startswith(b"id: 1\n")
    for number in range(1, 11):
        assert (await anext(quick)).startswith(b"id: %d\n" % number)
    heard = 10
    for _ in range(4):  # when one has the last of them, the other may not have it yet
        await asyncio.to_thread(append_many, context, QUEUE // 2)
        for _ in range(QUEUE // 2):
            assert (await anext(quick)).startswith(b"id: %d\n" % (heard + 1))
            heard += 1
    assert tail.clients == 2
    left = [content async for content in slow]
    assert left == [b"event: reset\nid: %d\ndata: {}\n\n" % heard]
    assert tail.clients == 1
    await quick.aclose()
    assert tail.clients == 0


def test_without_a_client_nothing_is_read_and_the_first_one_misses_nothing(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def counted(connection: Connection, *, after: int, scope: Scope) -> list[StreamMessage]:
        reads.append(after)
        return read_frames(connection, after=after, scope=scope)

    monkeypatch.setattr("server.core.events.tail.read_frames", counted)
    append_many(context, 3)
    tail = Tail(context)
    tail.start()
    try:
        append_many(context, 20)
        until(lambda: tail.position == 23)
        assert reads == []
        asyncio.run(_reads_from(context, tail, 23))
    finally:
        tail.stop()
    assert min(reads) == 23


async def _reads_from(context: Context, tail: Tail, position: int) -> None:
    stream = opened(context, tail)
    begin = [await anext(stream) for _ in range(2)]
    assert begin == [b"retry: 1000\n\n", b"id: %d\n\n" % position]
    stream = frames(stream)
    await asyncio.to_thread(append_many, context, 2)
    for number in (1, 2):
        assert (await anext(stream)).startswith(b"id: %d\n" % (position + number))
    await stream.aclose()


def test_many_notices_at_once_reset_no_client(context: Context) -> None:
    tail = Tail(context)
    tail.start()
    try:
        asyncio.run(_reads_many_notices(context, tail))
    finally:
        tail.stop()


async def _reads_many_notices(context: Context, tail: Tail) -> None:
    jobs = [f"{number:026d}" for number in range(QUEUE + 1)]
    stream = opened(context, tail)
    assert [await anext(stream) for _ in range(2)] == [b"retry: 1000\n\n", b"id: 0\n\n"]
    stream = frames(stream)
    await asyncio.to_thread(wait_for, context, jobs, "needs 1 slot")
    read = [await anext(stream) for _ in jobs]
    # The notices of one transaction have no order.
    assert [job for job in jobs if not any(job.encode() in content for content in read)] == []
    await stream.aclose()


def test_of_each_notice_the_newest_waits_after_what_it_overtook() -> None:
    async def received() -> list[bytes]:
        subscription = Subscription(position=0, job_id="a", holder=holder(1), scope=SYSTEM_SCOPE)
        first = StreamMessage(None, ("a", "waiting", ""), "a", b"old")
        other = StreamMessage(None, ("b", "waiting", ""), "b", b"another job's")
        subscription.add([first, other])
        subscription.add([StreamMessage(1, 1, "a", b"event")])
        subscription.add([replace(first, content=b"new")])
        return [message.content for message in await subscription.take()]

    assert asyncio.run(received()) == [b"event", b"new"]


def test_what_came_since_the_last_look_is_one_write_to_each_client(context: Context) -> None:
    async def writes() -> list[list[bytes]]:
        streams = [opened(context, tail) for _ in range(50)]
        for stream in streams:
            assert [await anext(stream) for _ in range(2)] == [b"retry: 1000\n\n", b"id: 0\n\n"]
        await asyncio.to_thread(append_many, context, 20)
        got = [[await anext(stream)] for stream in streams]
        for contents, stream in zip(got, streams, strict=True):
            while b"".join(contents).count(b"data: ") < 20:
                contents.append(await anext(stream))
            await stream.aclose()
        return got

    tail = Tail(context)
    tail.start()
    try:
        got = asyncio.run(writes())
    finally:
        tail.stop()
    assert {b"".join(contents) for contents in got} == {b"".join(got[0])}
    assert max(map(len, got)) < 20


async def frames(stream: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield each frame of a stream; one read may contain several."""
    async with aclosing(stream):
        async for content in stream:
            for frame in content.removesuffix(b"\n\n").split(b"\n\n"):
                yield frame + b"\n\n"


def wait_for(context: Context, jobs: list[str], reason: str) -> None:
    """Commit a notice of each job."""
    with context.database.write() as connection:
        notify_all(context, connection, [(Subject(job), Waiting(reason=reason)) for job in jobs])


def test_a_token_takes_no_place_of_another_and_its_oldest_stream_gives_way(
    context: Context,
) -> None:
    tail = Tail(context)
    tail.start()
    try:
        asyncio.run(_one_token_opens_many(context, tail))
    finally:
        tail.stop()


async def _one_token_opens_many(context: Context, tail: Tail) -> None:
    async def opened(whose: Holder) -> AsyncGenerator[bytes]:
        stream = follow(
            context, tail, last_event_id=None, job_id=None, holder=whose, scope=SYSTEM_SCOPE
        )
        assert await anext(stream) == b"retry: 1000\n\n"
        assert await anext(stream) == b"id: 0\n\n"
        return stream

    streams = [await opened(holder(1)) for _ in range(LIMITS.per_person)]
    assert tail.clients == LIMITS.per_person
    tail.check_room(holder(1))
    streams.append(await opened(holder(1)))
    assert tail.clients == LIMITS.per_person
    assert [content async for content in streams[0]] == [b"retry: 60000\n\n"]
    tail.check_room(holder(2))
    streams.append(await opened(holder(2)))
    assert tail.clients == LIMITS.per_person + 1
    for stream in streams:
        await stream.aclose()
    assert tail.clients == 0
