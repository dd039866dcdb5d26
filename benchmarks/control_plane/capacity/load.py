"""The load on a server: many connections from one process, with the time of each request.

It writes HTTP itself: a client library takes as long for a request as the server does, and both
share the machine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Lane:
    """Requests of one client, in order and one at a time."""

    kind: str
    """Its requests are counted together with those of other lanes of this kind."""
    url: str
    token: str
    bodies: Sequence[bytes]
    """Bodies of POST requests; an empty body makes a GET."""
    interval: float = 0.0
    """Seconds from one request's due time to the next one's; 0: immediately after each answer."""


@dataclass
class Sent:
    """The results of a load."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Time of each request by kind of lane, from its due time to the end of its answer."""
    refused: dict[str, list[int]] = field(default_factory=dict)
    """Statuses other than success, by kind of lane."""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of the sending process."""


def send_from_another_process(lanes: Sequence[Lane], *, for_seconds: float) -> Sent:
    """Send from a separate process, until all bodies are sent or the time is over.

    A late lane sends immediately, and its time counts from when the request was due: a slow answer
    delays all requests that wait for it.

    Args:
        lanes: the clients; those with an interval start at random moments within it.
        for_seconds: time after which no request starts.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(send_here, list(lanes), for_seconds).result()


def send_here(lanes: Sequence[Lane], for_seconds: float) -> Sent:
    """Send from this process, as in `send_from_another_process`."""
    return asyncio.run(_send_all(lanes, for_seconds))


async def _send_all(lanes: Sequence[Lane], for_seconds: float) -> Sent:
    sent, chance = Sent(), random.Random(0)
    started, busy = time.perf_counter(), time.process_time()
    end = started + for_seconds
    await asyncio.gather(
        *(
            _run(lane, started + chance.random() * lane.interval, end=end, sent=sent)
            for lane in lanes
        )
    )
    sent.wall_seconds = time.perf_counter() - started
    sent.cpu_seconds = time.process_time() - busy
    return sent


async def _run(lane: Lane, due: float, *, end: float, sent: Sent) -> None:
    seconds = sent.seconds.setdefault(lane.kind, [])
    refused = sent.refused.setdefault(lane.kind, [])
    connection = Connection(lane)
    for body in lane.bodies:
        await asyncio.sleep(due - time.perf_counter())
        if time.perf_counter() >= end:
            break
        status = await connection.request(body)
        now = time.perf_counter()
        if 200 <= status < 300:
            seconds.append(now - due)
        else:
            refused.append(status)
        due = due + lane.interval if lane.interval else now
    connection.close()


class Connection:
    """The connection of one lane; the server closes idle ones."""

    def __init__(self, lane: Lane) -> None:
        target = urlsplit(lane.url)
        self._place = target.hostname, target.port
        path = f"{target.path}?{target.query}" if target.query else target.path
        self._head = f"{path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {lane.token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, body: bytes) -> int:
        """Send one request and return its status; the server may have closed the connection."""
        if self._streams is not None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                return await self._exchange(*self._streams, body)
            self.close()
        self._streams = await asyncio.open_connection(*self._place)
        return await self._exchange(*self._streams, body)

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
    ) -> int:
        sized = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        writer.write(f"{'POST' if body else 'GET'} {self._head}{sized}\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status, *headers = answer.decode("latin-1").lower().split("\r\n")
        (length,) = (line for line in headers if line.startswith("content-length:"))
        await reader.readexactly(int(length.partition(":")[2]))
        return int(status.split()[1])
