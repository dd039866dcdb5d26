"""The tail of events and notices: one thread a process hands what is new to every stream."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Annotated, ClassVar

import orjson
from sqlalchemy import Connection, Table, Text, func, select, type_coerce

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import events
from server.core.errors import UnavailableError
from server.core.events.notices import NoticeCursor, StoredNotice
from server.core.events.shares import Holder, NoPlaceError, ShareLimits, gives_way

logger = logging.getLogger(__name__)

BUSY_SECONDS = 0.05
"""Pause between two looks while events come, with few clients."""
CLIENT_SECONDS = 0.00025
"""Part of that pause for each client: what comes within it is one write to each of them, so that a
thousand clients take a part of a core however much happens."""
IDLE_SECONDS = 0.25
"""Pause while none came for the last second."""
AWAY_SECONDS = 1.0
"""Pause after the database did not answer."""
BATCH = 500
"""Events that one look reads."""
QUEUE = 1000
"""Events that may wait for one client; a slower one has to start anew. Notices do not count: of
each key only the newest waits, so a client cannot fall behind by them."""
LIMITS = ShareLimits(total=1000, per_token=100, per_address=250)
"""Streams of one process: a thousand cost a fifth of a core where a job or several change 32 times
a second. A token has a tenth of them, an address a quarter."""
NO_TOKEN = Holder("")


@dataclass(frozen=True, slots=True)
class StoredEvent(TypedRow):
    """An event as a row; its data stay the JSON text that is stored."""

    table: ClassVar[Table] = events
    id: int
    at: datetime
    kind: str
    job_id: str | None
    attempt: int | None
    node: str | None
    actor: str
    message: str
    data: Annotated[str, type_coerce(events.c.data, Text).label("data")]

    @property
    def view(self) -> dict[str, object]:
        """An `EventView`, for orjson."""
        row = {name: getattr(self, name) for name in _NAMES}
        return {**row, "data": orjson.Fragment(self.data)}


_NAMES = tuple(field.name for field in fields(StoredEvent))


@dataclass(frozen=True)
class StreamMessage:
    """One event or notice as it goes over the wire, encoded once for all clients."""

    id: int | None
    """Id of the event; a notice has none, and leaves the client's position as it is."""
    key: Hashable
    """A later message with this key replaces this one while it waits: id or key of the row."""
    job_id: str | None
    content: bytes


class Subscription:
    """What waits for one client. Its methods run in the client's event loop."""

    def __init__(self, *, position: int, job_id: str | None, holder: Holder) -> None:
        self.holder = holder
        """Whose it is."""
        self.gave_way = False
        """Whether another stream has its place."""
        self.position = position
        """Id of the newest event when it began: it brings every later one."""
        self.overflowed = False
        """Whether the client was so slow that events were dropped."""
        self.ended = False
        """Whether nothing will come any more."""
        self._job_id = job_id
        self._waiting: dict[Hashable, StreamMessage] = {}
        self._events = 0  # of those that wait
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def take(self) -> Sequence[StreamMessage]:
        """Wait until a message came or the subscription ended; return what came, in order."""
        await self._changed.wait()
        self._changed.clear()
        taken, self._waiting, self._events = tuple(self._waiting.values()), {}, 0
        return taken

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of its client."""
        return self._loop

    def add(self, messages: Sequence[StreamMessage]) -> None:
        """Accept those of the messages that are for this client."""
        if self._job_id is not None:
            messages = [message for message in messages if message.job_id == self._job_id]
        if not messages:
            return
        for message in messages:
            self._waiting.pop(message.key, None)  # the newest state comes after older events
            self._waiting[message.key] = message
        self._events += sum(message.id is not None for message in messages)
        if self._events > QUEUE:
            self.overflowed = True
            self._waiting = {}
        self._changed.set()

    def give_way(self) -> None:
        """End it, because another stream has its place."""
        self.gave_way = True
        self.end()

    def end(self) -> None:
        """Wake the client for the last time."""
        self.ended = True
        self._changed.set()


class Tail:
    """Reads new events in the order of their ids, which is the order of their commits."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._subscriptions: dict[Subscription, None] = {}  # the oldest first
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events-tail", daemon=True)
        self._notices = NoticeCursor()
        self.position = 0
        """Id of the newest event that was handed over."""

    def start(self) -> None:
        """Begin after the newest event."""
        with self._context.database.read() as connection:
            self.position = newest_id(connection)
            self._notices.start(connection)
        self._thread.start()

    def stop(self) -> None:
        """End all streams; returns when the thread has ended."""
        self._stopped.set()
        self._thread.join()
        with self._lock:
            self._in_loops(Subscription.end)

    @property
    def clients(self) -> int:
        """Number of open streams."""
        return len(self._subscriptions)

    def check_room(self, holder: Holder) -> None:
        """Refuse a stream that no other one can give way to.

        Raises:
            UnavailableError: this process serves as many streams as it can, and of no token more
                than of this one.
        """
        with self._lock:
            self._place_of(holder)

    @contextmanager
    def subscription(
        self, *, job_id: str | None, holder: Holder = NO_TOKEN
    ) -> Iterator[Subscription]:
        """Hand every event after this moment to the subscription, until the block ends.

        Where its holder, or the process, has all of its streams, an older one ends.
        """
        with self._lock:
            former = self._place_of(holder)
            subscription = Subscription(position=self.position, job_id=job_id, holder=holder)
            self._subscriptions[subscription] = None
            if former is not None:
                self._subscriptions.pop(former)
                former.loop.call_soon_threadsafe(former.give_way)
        try:
            yield subscription
        finally:
            with self._lock:
                self._subscriptions.pop(subscription, None)

    def _place_of(self, holder: Holder) -> Subscription | None:
        try:
            place = gives_way([(s.holder, s) for s in self._subscriptions], holder, LIMITS)
        except NoPlaceError:
            raise UnavailableError(
                f"{self.clients} streams are open, and no token has more than its part; try again "
                "soon"
            ) from None
        assert place is None or isinstance(place, Subscription)
        return place

    def _run(self) -> None:
        busy_until = 0.0
        pause = IDLE_SECONDS
        while not self._stopped.wait(pause):
            try:
                found = self._look()
            except Exception:  # most likely the database is away; streams wait, and none ends
                logger.exception("the tail of the events could not be read")
                pause = AWAY_SECONDS
                continue
            now = time.monotonic()
            if found:
                busy_until = now + 1.0
            busy_seconds = max(BUSY_SECONDS, CLIENT_SECONDS * self.clients)
            pause = busy_seconds if now < busy_until else IDLE_SECONDS

    def _look(self) -> bool:
        if not self._subscriptions:
            self._skip()
            return False
        with self._context.database.read() as connection:
            # Before the events: of an event and a notice that it overtakes, the event comes last.
            changed = [notice_frame(row) for row in self._notices.read(connection)]
            happened = read_frames(connection, after=self.position)
        self._notices.advance()  # not before the events are read as well, which may fail
        if not changed and not happened:
            return False
        with self._lock:  # whoever subscribes gets either the position before, and these, or after
            self.position = next((f.id for f in reversed(happened) if f.id), self.position)
            self._in_loops(partial(_add_to, messages=[*changed, *happened]))
        return True

    def _in_loops(self, call: Callable[[Subscription], None]) -> None:
        """Have the event loops of the clients call a function for each, in one callback a loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Subscription]] = {}
        for subscription in self._subscriptions:
            by_loop.setdefault(subscription.loop, []).append(subscription)
        for loop, some in by_loop.items():
            loop.call_soon_threadsafe(_call_for_each, call, some)

    def _skip(self) -> None:
        """Pass what is new without reading it, where no client would get it."""
        with self._context.database.read() as connection:
            self._notices.skip(connection)
            newest = newest_id(connection)
        with self._lock:
            if not self._subscriptions:  # else the first one has the former position
                self.position = newest
                self._notices.advance()


def _call_for_each(
    call: Callable[[Subscription], None], subscriptions: Sequence[Subscription]
) -> None:
    for subscription in subscriptions:
        call(subscription)


def _add_to(subscription: Subscription, *, messages: Sequence[StreamMessage]) -> None:
    subscription.add(messages)


def newest_id(connection: Connection) -> int:
    """Return the id of the newest event; 0 when there is none."""
    return connection.scalar(select(func.max(events.c.id))) or 0


def read_frames(
    connection: Connection, *, after: int, up_to: int | None = None, job_id: str | None = None
) -> list[StreamMessage]:
    """Return the next events after an id, at most `BATCH` of them, in order."""
    query = StoredEvent.select().where(events.c.id > after)
    if up_to is not None:
        query = query.where(events.c.id <= up_to)
    if job_id is not None:
        query = query.where(events.c.job_id == job_id)
    rows = StoredEvent.all(connection, query.order_by(events.c.id).limit(BATCH))
    return [_frame(row) for row in rows]


def notice_frame(row: StoredNotice) -> StreamMessage:
    """Return a notice as it goes over the wire."""
    data = orjson.dumps(row.view, option=orjson.OPT_UTC_Z)
    return StreamMessage(None, row.key, row.job_id, b"data: %s\n\n" % data)


def _frame(row: StoredEvent) -> StreamMessage:
    data = orjson.dumps(row.view, option=orjson.OPT_UTC_Z)
    return StreamMessage(row.id, row.id, row.job_id, b"id: %d\ndata: %s\n\n" % (row.id, data))
