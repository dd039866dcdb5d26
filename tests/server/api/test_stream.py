"""`/stream` over real sockets: two server processes' applications over one database."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import httpx
import pytest
from sqlalchemy import delete

from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.tables import events
from server.core.events.notices import notify
from server.core.events.store import NewEvent, append_event
from server.core.events.stream import MAX_REPLAYED
from server.core.events.tail import (
    newest_id,
)
from server.core.subject import Subject
from tests.actors import TESTER
from tests.server.api.serving import PATIENCE, serving, until
from tests.server.clock import FakeClock
from tests.server.core.events.appended import append_many
from trainyard.protocol.rest.event_data import Waiting
from trainyard.protocol.rest.nodes import NodeOnline


@dataclass
class Heard:
    """The events that one client received."""

    ids: list[int] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)
    notices: list[dict[str, object]] = field(default_factory=list)
    resets: int = 0
    position: int | None = None
    """The client's Last-Event-ID."""
    opened: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)


@contextmanager
def listening(
    url: str, token: str, *, last: int | None = None, job: str | None = None
) -> Iterator[Heard]:
    """Read a stream in a thread until the block ends."""
    heard = Heard()
    headers = {"authorization": f"Bearer {token}"}
    if last is not None:
        headers["last-event-id"] = str(last)
    client = httpx.Client(timeout=httpx.Timeout(PATIENCE))
    parameters = {} if job is None else {"job": job}
    response = client.send(
        client.build_request("GET", f"{url}/api/v1/stream", headers=headers, params=parameters),
        stream=True,
    )
    assert response.status_code == 200, response.read()
    thread = threading.Thread(target=_listen, args=(response, heard))
    thread.start()
    try:
        assert heard.opened.wait(PATIENCE)
        yield heard
    finally:
        _cut(response)
        thread.join()
        client.close()


def _cut(response: httpx.Response) -> None:
    stream = response.extensions["network_stream"]
    stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def _listen(response: httpx.Response, heard: Heard) -> None:
    kind, data = "message", ""
    try:
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                heard.position = int(value)
            elif name == "event":
                kind = value
            elif name == "data":
                data = value
            elif not line:
                _dispatch(heard, kind, data)
                kind, data = "message", ""
                heard.opened.set()
    except httpx.HTTPError:
        pass
    finally:
        heard.closed.set()


def _dispatch(heard: Heard, kind: str, data: str) -> None:
    if kind == "reset":
        heard.resets += 1
    elif data:
        event = json.loads(data)
        if "id" not in event:
            heard.notices.append(event)
            return
        assert event["id"] == heard.position
        heard.events.append(event)
        heard.ids.append(event["id"])


def append(context: Context, message: str, *, job_id: str | None = None) -> int:
    """Commit one event, and return its id."""
    with context.database.write() as connection:
        event = NewEvent(NodeOnline(), TESTER, Subject(job_id), message)
        append_event(context, connection, event)
        return newest_id(connection)


class _UndoneError(Exception):
    """Ends a transaction without a commit."""


def write_interleaved(
    context: Context, *, writers: int, each: int, second_half: threading.Event
) -> None:
    """Commit events from several threads concurrently; some transactions commit late."""

    def write(number: int) -> None:
        pauses = random.Random(number)
        database = Database(context.settings.database_url)
        own = Context(context.settings, database, context.clock)
        for index in range(each):
            if index == each // 2:
                assert second_half.wait(PATIENCE)
            with suppress(_UndoneError), database.write() as connection:
                for part in range(2):
                    event = NewEvent(NodeOnline(), TESTER, Subject(), f"{number}.{index}.{part}")
                    append_event(own, connection, event)
                    time.sleep(pauses.random() * 0.004)
                if pauses.random() < 0.1:
                    raise _UndoneError  # rolled back: its ids never appear
        database.dispose()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def stored_ids(context: Context, *, after: int) -> list[int]:
    """Return the ids of the events in the database."""
    query = events.select().where(events.c.id > after).order_by(events.c.id)
    with context.database.read() as connection:
        return [row.id for row in connection.execute(query)]


def test_every_client_of_two_servers_sees_every_event_once_in_order(
    context: Context, api_token: str
) -> None:
    first = append(context, "before")
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(context)) for _ in range(2)]
        clients = [stack.enter_context(listening(url, api_token)) for url in urls for _ in range(2)]
        # These reconnect in the middle, each time to the other server, with their last id.
        wanderers = [Heard(), Heard()]
        for wanderer in wanderers:
            wanderer.position = first
        second_half = threading.Event()
        writing = threading.Thread(
            target=write_interleaved,
            args=(context,),
            kwargs={"writers": 4, "each": 25, "second_half": second_half},
        )
        writing.start()
        turn = 0
        while writing.is_alive():
            for number, wanderer in enumerate(wanderers):
                url = urls[(turn + number) % 2]
                with listening(url, api_token, last=wanderer.position) as heard:
                    if turn == 1:
                        second_half.set()
                    time.sleep(0.15)
                _append_all(wanderer, heard)
            turn += 1
        writing.join()
        expected = stored_ids(context, after=first)
        assert len(expected) > 100
        until(lambda: all(len(client.ids) >= len(expected) for client in clients))
        assert [client.ids for client in clients] == [expected] * 4
        for number, wanderer in enumerate(wanderers):
            missing = len(expected) - len(wanderer.ids)
            with listening(urls[number], api_token, last=wanderer.position) as heard:
                until(lambda: len(heard.ids) >= missing)  # noqa: B023
            _append_all(wanderer, heard)
            assert wanderer.ids == expected
            assert wanderer.resets == 0


def _append_all(wanderer: Heard, heard: Heard) -> None:
    wanderer.ids += heard.ids
    wanderer.resets += heard.resets
    wanderer.position = heard.position or wanderer.position


def test_an_event_of_the_stream_equals_that_of_the_list(context: Context, api_token: str) -> None:
    with serving(context) as url, listening(url, api_token) as heard:
        headers = {"authorization": f"Bearer {api_token}"}
        job = httpx.post(f"{url}/api/v1/jobs", json={"name": "x"}, headers=headers).json()
        until(lambda: heard.events)
        (listed,) = httpx.get(f"{url}/api/v1/jobs/{job['id']}/events", headers=headers).json()[
            "items"
        ]
        assert heard.events == [listed]
        assert listed["kind"] == "submitted"
        assert listed["actor"] == "someone"


def test_a_filter_leaves_the_events_of_one_job(context: Context, api_token: str) -> None:
    one, other = context.new_id(), context.new_id()
    begin = append(context, "begin")
    with serving(context) as url, listening(url, api_token, job=one) as live:
        mine = [append(context, "mine", job_id=one)]
        append(context, "not mine", job_id=other)
        append(context, "nobody's")
        mine.append(append(context, "mine", job_id=one))
        until(lambda: len(live.ids) == 2)
        with listening(url, api_token, last=begin, job=one) as replayed:
            until(lambda: len(replayed.ids) == 2)
            last = append(context, "mine", job_id=one)
            until(lambda: len(replayed.ids) == len(live.ids) == 3)
        assert live.ids == replayed.ids == [*mine, last]


def test_a_gap_that_cannot_be_replayed_is_a_reset(context: Context, api_token: str) -> None:
    old = append(context, "old")
    append_many(context, MAX_REPLAYED)
    gone = append(context, "gone")
    young = append(context, "young")
    with context.database.write() as connection:
        connection.execute(delete(events).where(events.c.id == gone))
    with serving(context) as url:
        for last in (old, gone, young + 1000):
            with listening(url, api_token, last=last) as heard:
                until(lambda: heard.resets == 1)
                later = append(context, "later")
                until(lambda: heard.ids == [later])  # noqa: B023
            assert heard.position == later
        with listening(url, api_token, last=young) as heard:
            until(lambda: len(heard.ids) == 3)
            assert heard.resets == 0


def test_notices_have_no_id_and_the_newest_is_replayed(
    context: Context, api_token: str, clock: FakeClock
) -> None:
    one, other = context.new_id(), context.new_id()
    with context.database.write() as connection:
        notify(context, connection, subject=Subject(one), data=Waiting(reason="long ago"))
    clock.advance(1)
    begin = append(context, "begin", job_id=one)
    with serving(context) as url, listening(url, api_token, job=one) as live:
        for job_id, reason in ((one, "first"), (other, "not mine"), (one, "second")):
            with context.database.write() as connection:
                notify(context, connection, subject=Subject(job_id), data=Waiting(reason=reason))
        until(lambda: live.notices and live.notices[-1]["data"] == {"reason": "second"})
        assert {notice["job_id"] for notice in live.notices} == {one}
        assert live.position == begin
        end = append(context, "end", job_id=one)
        with listening(url, api_token, last=begin, job=one) as replayed:
            until(lambda: replayed.ids == [end])
            assert [notice["data"] for notice in replayed.notices] == [{"reason": "second"}]
        with listening(url, api_token, last=end, job=one) as later:
            append(context, "more", job_id=one)
            until(lambda: len(later.ids) == 1)
            assert later.resets == 0


@pytest.mark.parametrize("last", ["x", "-1", str(2**63)])
def test_a_last_event_id_that_is_none_is_refused(client: httpx.Client, last: str) -> None:
    response = client.get("/api/v1/stream", headers={"last-event-id": last})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "header/last-event-id"
