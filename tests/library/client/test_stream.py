"""The stream: each event once and in order, over broken connections."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import httpx
import pytest

from trainyard.client.errors import ConnectionFailedError, ServerError, UnauthenticatedError
from trainyard.client.settings import Connection
from trainyard.client.stream import EventStream, Resync, parse_events
from trainyard.client.transport import Transport
from trainyard.protocol.rest.events import Event


class Body(httpx.SyncByteStream):
    """A response in pieces that may break off."""

    def __init__(self, *pieces: str, breaks: bool = False) -> None:
        self.pieces = pieces
        self.breaks = breaks

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            yield piece.encode()
        if self.breaks:
            raise httpx.ReadError("connection lost")


def event(number: int, kind: str = "placed") -> str:
    view = {
        "id": number,
        "at": "2026-01-01T00:00:00Z",
        "kind": kind,
        "job_id": None,
        "attempt": None,
        "node": None,
        "actor": "scheduler",
        "message": f"event {number}",
        "data": {},
        "invented_later": 1,
    }
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(view)}\n\n"


class Streams:
    """One scripted connection after the other; after the last the server is away."""

    def __init__(self, *connections: Body | httpx.Response) -> None:
        self.connections = list(connections)
        self.last_ids: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.last_ids.append(request.headers.get("last-event-id"))
        if not self.connections:
            raise httpx.ConnectError("refused", request=request)
        answer = self.connections.pop(0)
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, stream=answer)

    def seen(self, *, give_up_seconds: float = 60.0) -> tuple[list[object], Exception]:
        """Return a client's items until it gives up, and its final error."""
        ticks = itertools.count()
        transport = Transport(
            Connection("http://yard", "t"),
            transport=httpx.MockTransport(self),
            sleep=lambda _: None,
        )
        stream = EventStream(
            transport, clock=lambda: float(next(ticks)), give_up_seconds=give_up_seconds
        )
        items: list[object] = []
        try:
            items.extend(item.id if isinstance(item, Event) else item for item in stream)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return items, error
        raise AssertionError("a stream ends only by raising")


def test_a_broken_connection_goes_on_after_the_last_event() -> None:
    streams = Streams(
        Body("retry: 1000\n\n", "id: 5\n\n", event(6), breaks=True),
        Body(": ping\n\n", event(7), event(8)),
    )
    items, error = streams.seen(give_up_seconds=3)
    assert items == [Resync(), 6, 7, 8]
    assert streams.last_ids[:3] == [None, "6", "8"]
    assert isinstance(error, ConnectionFailedError)


def test_a_connection_that_brought_only_its_position_is_caught_up() -> None:
    streams = Streams(Body("id: 5\n\n", breaks=True), Body(event(6)))
    items, _ = streams.seen(give_up_seconds=3)
    assert items == [Resync(), 6]
    assert streams.last_ids[1] == "5"


def test_a_gap_that_cannot_be_replayed_yields_a_resync() -> None:
    streams = Streams(Body(event(6)), Body("event: reset\nid: 900\ndata: {}\n\n", event(901)))
    items, _ = streams.seen(give_up_seconds=3)
    assert items == [Resync(), 6, Resync(), 901]
    assert streams.last_ids[2] == "901"


def test_events_cut_anywhere_are_whole() -> None:
    text = event(1) + event(2)
    for cut in range(0, len(text), 17):
        items, _ = Streams(Body(text[:cut], text[cut:])).seen(give_up_seconds=1)
        assert items == [Resync(), 1, 2]


def test_a_restart_is_waited_for_and_a_long_absence_is_not() -> None:
    answers = [httpx.Response(503) for _ in range(3)]
    items, error = Streams(*answers, Body(event(1))).seen(give_up_seconds=60)
    assert items == [Resync(), 1]
    assert isinstance(error, ConnectionFailedError)
    _, error = Streams(*(httpx.Response(503) for _ in range(99))).seen(give_up_seconds=5)
    assert isinstance(error, ServerError)


def test_a_refusal_is_raised_at_once() -> None:
    streams = Streams(httpx.Response(401))
    _, error = streams.seen()
    assert isinstance(error, UnauthenticatedError)
    assert len(streams.last_ids) == 1


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ([": ping", ""], []),
        (["data: a", "data: b", ""], [("message", "a\nb", None)]),
        (["event:reset", "id:9", "data:{}", ""], [("reset", "{}", "9")]),
        (["data: cut off"], []),
    ],
)
def test_lines_become_events(lines: list[str], kinds: list[tuple[str, str, str | None]]) -> None:
    found = [(e.kind, "\n".join(e.data), e.id) for e in parse_events(lines)]
    assert found == kinds
