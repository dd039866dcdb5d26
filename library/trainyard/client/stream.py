"""The stream of events: server-sent events, resumed after every interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import httpx
from pydantic import TypeAdapter, ValidationError

from trainyard.base.backoff import Retries
from trainyard.client.errors import ServerError
from trainyard.client.transport import BACKOFF, Transport, unreachable
from trainyard.protocol.rest.events import AnyStreamItem

SILENCE_SECONDS = 45.0
"""Time in seconds without any data, not even a ping, after which the client reconnects."""


ITEM: TypeAdapter[AnyStreamItem] = TypeAdapter(AnyStreamItem)


@dataclass(frozen=True)
class Resync:
    """Marks a gap in the events: the reader must read the current state again.

    A `Resync` is the first item of every stream, and follows each gap that the server could not
    replay.
    """


@dataclass
class ServerEvent:
    """One server-sent event (WHATWG HTML, section 9.2.6)."""

    kind: str = "message"
    id: str | None = None
    data: list[str] = field(default_factory=list)


class EventStream:
    """Yields each event once and in order, despite lost connections; notices come in between."""

    def __init__(
        self,
        transport: Transport,
        *,
        job_id: str | None = None,
        give_up_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the stream; iterating over it opens the connection.

        Args:
            transport: transport to the server.
            job_id: only this job's events; by default all events.
            give_up_seconds: duration of the retries while the server cannot be reached.
            clock: monotonic clock in seconds.
        """
        self._transport = transport
        self._job_id = job_id
        self._retries = Retries(BACKOFF, for_seconds=give_up_seconds, clock=clock)
        self._last_id: str | None = None

    def __iter__(self) -> Iterator[AnyStreamItem | Resync]:
        """Yield events and notices, and a `Resync` wherever earlier events are missing.

        Raises:
            ConnectionFailedError: the server was unreachable for longer than `give_up_seconds`.
            ApiError: the server rejected the request.
        """
        while True:
            try:
                yield from self._one_connection()
                pause = BACKOFF.first  # the server ends streams from time to time
            except (httpx.TransportError, ServerError) as error:
                pause = self._pause_after(error)
            self._transport.sleep(pause)

    def _one_connection(self) -> Iterator[AnyStreamItem | Resync]:
        """Yield the items of one connection until it ends."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        with self._transport.stream(
            "/stream",
            query={"job": self._job_id},
            headers=headers,
            silence_seconds=SILENCE_SECONDS,
        ) as response:
            self._retries.succeeded()
            if self._last_id is None:
                yield Resync()
            for event in parse_events(response.iter_lines()):
                self._last_id = event.id or self._last_id
                if event.kind == "reset":
                    yield Resync()
                elif (view := _view(event)) is not None:
                    yield view

    def _pause_after(self, error: httpx.TransportError | ServerError) -> float:
        pause = self._retries.failed()
        if pause is not None:
            return pause
        if isinstance(error, ServerError):
            raise error
        raise unreachable(self._transport.connection.url, error) from error


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Yield the events in lines, even events that consist of an id alone; skip comments (pings)."""
    event, empty = ServerEvent(), True
    for line in lines:
        if not line:
            if not empty:
                yield event
            event, empty = ServerEvent(), True
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        empty = empty and name not in {"data", "event", "id"}
        if name == "data":
            event.data.append(value)
        elif name == "event":
            event.kind = value
        elif name == "id":
            event.id = value


def _view(event: ServerEvent) -> AnyStreamItem | None:
    if not event.data:
        return None
    try:
        return ITEM.validate_json("\n".join(event.data), extra="ignore")
    except ValidationError:  # not an event: a message of a newer server
        return None
