"""The tail of events and notices: one thread per process passes new ones to every stream."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Annotated, ClassVar

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    Text,
    func,
    or_,
    select,
    type_coerce,
)

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import events
from server.core.errors import UnavailableError
from server.core.events.notices import NoticeCursor, StoredNotice
from server.core.events.shares import Holder, NoPlaceError, ShareLimits, gives_way
from server.core.visibility.scope import SYSTEM_SCOPE, Scope
from trainyard.protocol.rest.access import Permission

logger = logging.getLogger(__name__)

BUSY_SECONDS = 0.05
"""Pause between two polls while events arrive and clients are few, in seconds."""
CLIENT_SECONDS = 0.00025
"""Time per open stream, in seconds. The sum over all open streams is the pause between two polls if
the sum exceeds `BUSY_SECONDS`. Each client gets all messages of one pause in one write, which
bounds the cost of a thousand clients.
"""
IDLE_SECONDS = 0.25
"""Pause between two polls after a second without events, in seconds."""
AWAY_SECONDS = 1.0
"""Pause after a failed poll, in seconds, because the database may be unreachable."""
BATCH = 500
"""Maximum number of events that one poll reads."""
QUEUE = 1000
"""Maximum number of events that may wait for one client; with more, the client must reload its
state. Notices do not count, because only the newest notice of each key waits.
"""
LIMITS = ShareLimits(total=1000, per_person=100, per_address=250)
"""Limits on the streams of one process. A thousand streams cost a fifth of a core while jobs change
32 times per second.
"""


@dataclass(frozen=True, slots=True)
class StoredEvent(TypedRow):
    """A stored event; its data are not parsed and stay JSON text."""

    table: ClassVar[Table] = events
    id: int
    at: datetime
    kind: str
    job_id: str | None
    attempt: int | None
    node: str | None
    actor: str
    user: Annotated[str | None, events.c.user_name]
    message: str
    data: Annotated[str, type_coerce(events.c.data, Text).label("data")]
    project: str | None

    @property
    def view(self) -> dict[str, object]:
        """The fields of an `EventView`, for orjson to serialize."""
        row = {name: getattr(self, name) for name in _NAMES}
        return {**row, "data": orjson.Fragment(self.data)}


_NAMES = tuple(field.name for field in fields(StoredEvent) if field.name != "project")


def visible_events(scope: Scope) -> ColumnElement[bool]:
    """Return the SQL condition for the events that a caller sees, as `StreamMessage.is_for`."""
    no_job, no_project = events.c.job_id.is_(None), events.c.project.is_(None)
    of_node = events.c.node.is_not(None)
    of_project = scope.filter(events.c.project, Permission.PROJECTS_READ)
    kinds = [~no_job & scope.filter(events.c.project), no_job & ~no_project & of_project]
    if Permission.NODES_READ in scope.in_cluster:
        kinds.append(no_job & no_project & of_node)
    if Permission.SOURCES_READ in scope.in_cluster:
        kinds.append(no_job & no_project & ~of_node)
    return or_(*kinds)


@dataclass(frozen=True)
class StreamMessage:
    """An event or notice in its wire format, encoded once for all clients."""

    id: int | None
    """Id of the event; None for a notice, which does not change the client's position."""
    key: Hashable
    """Id or key of the row. A later message with the same key replaces a waiting message."""
    job_id: str | None
    content: bytes
    project: str | None = None
    """Project of the job, or of an event about a project."""
    node: str | None = None

    def is_for(self, scope: Scope) -> bool:
        """Return whether a caller sees the message.

        A message about a job needs `jobs:read` in its project, one about a project `projects:read`
        there, one about a node `nodes:read`, and one about a source `sources:read`.
        """
        if self.job_id is not None:
            return scope.sees(self.project)
        if self.project is not None:
            return scope.may(Permission.PROJECTS_READ, self.project)
        of = Permission.SOURCES_READ if self.node is None else Permission.NODES_READ
        return of in scope.in_cluster


class Subscription:
    """Messages that wait for one client. The methods run in the client's event loop."""

    def __init__(self, *, position: int, job_id: str | None, holder: Holder, scope: Scope) -> None:
        self.scope = scope
        """What the client sees now; another thread replaces it after a change of roles."""
        self.holder = holder
        """Person and address of the client."""
        self.loop = asyncio.get_running_loop()
        """The event loop of the client."""
        self.gave_way = False
        """Whether another stream took the place of this subscription."""
        self.position = position
        """Id of the newest event at the start of the subscription."""
        self.has_new_scope = False
        """Whether the client sees other projects than before, and does not know it yet."""
        self.overflowed = False
        """Whether events were dropped because the client was too slow."""
        self.ended = False
        """Whether no more messages will arrive."""
        self._job_id = job_id
        self._waiting: dict[Hashable, StreamMessage] = {}
        self._events = 0  # number of events among the waiting messages
        self._changed = asyncio.Event()

    async def take(self) -> Sequence[StreamMessage]:
        """Wait for messages or the end of the subscription; return the messages in order.

        Messages that the client no longer sees are omitted.
        """
        await self._changed.wait()
        self._changed.clear()
        taken, self._waiting, self._events = tuple(self._waiting.values()), {}, 0
        scope = self.scope
        return tuple(message for message in taken if message.is_for(scope))

    def add(self, messages: Sequence[StreamMessage]) -> None:
        """Queue the messages that the client sees; a client of one job gets only those about it."""
        scope = self.scope
        messages = [message for message in messages if message.is_for(scope)]
        if self._job_id is not None:
            messages = [message for message in messages if message.job_id == self._job_id]
        if not messages:
            return
        for message in messages:
            # The newest state must come after the older events.
            self._waiting.pop(message.key, None)
            self._waiting[message.key] = message
        self._events += sum(message.id is not None for message in messages)
        if self._events > QUEUE:
            self.overflowed = True
            self._waiting = {}
        self._changed.set()

    def see(self, scope: Scope) -> None:
        """Replace what the client sees, from another thread, and wake the client."""
        self.scope = scope
        self.has_new_scope = True
        with suppress(RuntimeError):  # the loop is closed, and the stream has ended with it
            self.loop.call_soon_threadsafe(self._changed.set)

    def give_way(self) -> None:
        """End the subscription, because another stream took its place."""
        self.gave_way = True
        self.end()

    def end_soon(self) -> None:
        """End the subscription, from another thread."""
        with suppress(RuntimeError):  # the loop is closed, and the stream has ended with it
            self.loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """End the subscription, and wake the client for the last time."""
        self.ended = True
        self._changed.set()


class Tail:
    """Reads new events in the order of their ids, which is the order of their commits."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._subscriptions: dict[Subscription, None] = {}  # in the order of their start
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events-tail", daemon=True)
        self._notices = NoticeCursor()
        self.position = 0
        """Id of the newest event that was passed to the streams."""

    def start(self) -> None:
        """Start the thread, and read from the newest event on."""
        with self._context.database.read() as connection:
            self.position = newest_id(connection)
            self._notices.start(connection)
        self._thread.start()

    def stop(self) -> None:
        """End all streams; return after the thread has ended."""
        self._stopped.set()
        self._thread.join()
        with self._lock:
            self._in_loops(Subscription.end)

    @property
    def clients(self) -> int:
        """Number of open streams."""
        return len(self._subscriptions)

    def check_room(self, holder: Holder) -> None:
        """Raise `UnavailableError` if a holder gets no stream, not even in place of an old one."""
        with self._lock:
            self._place_of(holder)

    @contextmanager
    def subscription(
        self, *, job_id: str | None, holder: Holder, scope: Scope
    ) -> Iterator[Subscription]:
        """Pass every new event to the subscription until the block ends.

        If the holder, its address or the process is at its limit, an older stream ends; if none may
        end, `UnavailableError` is raised.
        """
        with self._lock:
            former = self._place_of(holder)
            subscription = Subscription(
                position=self.position, job_id=job_id, holder=holder, scope=scope
            )
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
                f"{self.clients} streams are open, and no person has more than a share; try again "
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
            # Most likely the database is unreachable; streams wait and do not end.
            except Exception:
                logger.exception("the tail of the events could not be read")
                pause = AWAY_SECONDS
                continue
            now = time.monotonic()
            if found:
                busy_until = now + 1.0
            busy = max(BUSY_SECONDS, CLIENT_SECONDS * self.clients)
            pause = busy if now < busy_until else IDLE_SECONDS

    def _look(self) -> bool:
        if not self._subscriptions:
            self._skip()
            return False
        with self._context.database.read() as connection:
            # Read notices before events, because an event may supersede a notice, and must then
            # come last.
            changed = [notice_frame(row) for row in self._notices.read(connection)]
            happened = read_frames(connection, after=self.position, scope=SYSTEM_SCOPE)
        self._notices.advance()  # only after reading the events, because that may fail
        if not changed and not happened:
            return False
        # A stream opens either before this block and gets these messages, or after it.
        with self._lock:
            self.position = next((f.id for f in reversed(happened) if f.id), self.position)
            self._in_loops(partial(Subscription.add, messages=[*changed, *happened]))
        return True

    def _in_loops(self, call: Callable[[Subscription], None]) -> None:
        """Call a function for each subscription in its event loop, with one callback per loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Subscription]] = {}
        for subscription in self._subscriptions:
            by_loop.setdefault(subscription.loop, []).append(subscription)
        for loop, some in by_loop.items():
            loop.call_soon_threadsafe(_call_for_each, call, some)

    def _skip(self) -> None:
        """Advance past new events without reading them, because no client is connected."""
        with self._context.database.read() as connection:
            self._notices.skip(connection)
            newest = newest_id(connection)
        with self._lock:
            # A stream that has just opened starts at the former position.
            if not self._subscriptions:
                self.position = newest
                self._notices.advance()


def _call_for_each(call: Callable[[Subscription], None], some: Sequence[Subscription]) -> None:
    for subscription in some:
        call(subscription)


def newest_id(connection: Connection) -> int:
    """Return the id of the newest event, or 0 if there are no events."""
    return connection.scalar(select(func.max(events.c.id))) or 0


def read_frames(
    connection: Connection,
    *,
    scope: Scope,
    after: int,
    up_to: int | None = None,
    job_id: str | None = None,
) -> list[StreamMessage]:
    """Return the next visible events after the id `after`, in order, at most `BATCH`."""
    query = StoredEvent.select().where(events.c.id > after, visible_events(scope))
    if up_to is not None:
        query = query.where(events.c.id <= up_to)
    if job_id is not None:
        query = query.where(events.c.job_id == job_id)
    rows = StoredEvent.all(connection, query.order_by(events.c.id).limit(BATCH))
    return [_frame(row) for row in rows]


def notice_frame(row: StoredNotice) -> StreamMessage:
    """Return a notice as a message in its wire format."""
    data = orjson.dumps(row.view, option=orjson.OPT_UTC_Z)
    return StreamMessage(None, row.key, row.job_id, b"data: %s\n\n" % data, row.project)


def _frame(row: StoredEvent) -> StreamMessage:
    data = orjson.dumps(row.view, option=orjson.OPT_UTC_Z)
    content = b"id: %d\ndata: %s\n\n" % (row.id, data)
    return StreamMessage(row.id, row.id, row.job_id, content, row.project, row.node)
