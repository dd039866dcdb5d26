"""A stranger floods the server with what needs no token."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles
from urllib.parse import urlsplit

import httpx
import pytest

from embedded.record import read_record
from tests.e2e.control_plane import ControlPlane, finished, spec
from trainyard.client.sdk import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ATTACKERS = 8
FLOOD_SECONDS = 5.0
SLOWEST_SECONDS = 2.0
"""95th percentile of the answer to someone else meanwhile, on two busy cores."""


STRANGER = "127.0.0.2"
"""Address of the attackers: the others of this machine use another one."""


HALF_REQUESTS = 200
"""Connections that one attacker holds open: all eight go beyond the limit of an address."""
KEYS = json.dumps({f"key{number}": number for number in range(60_000)}).encode()
MANY_KEYS = (
    b"POST /api/v1/auth/session HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(KEYS), KEYS)
)

Address = tuple[str, int]


def connect(address: Address) -> socket.socket:
    """Connect from the address of a stranger."""
    return socket.create_connection(address, timeout=30, source_address=(STRANGER, 0))


def status(connection: socket.socket) -> int | None:
    """Return the status of the answer; None where the connection was cut off without one."""
    with contextlib.suppress(OSError):
        if line := connection.recv(65536).partition(b"\r\n")[0]:
            return int(line.split()[1])
    return None


def megabytes_of_headers(address: Address) -> list[int | None]:
    """Send headers without an end."""
    with connect(address) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
            for number in range(64):
                connection.sendall(b"x-%d: " % number + b"a" * 64 * 1024 + b"\r\n")
        return [status(connection)]


def half_requests(address: Address) -> list[int | None]:
    """Open connections, send half of a head on each, and wait."""
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(connect(address)) for _ in range(HALF_REQUESTS)]
        for connection in connections:
            with contextlib.suppress(OSError):  # one too many is answered and closed at once
                connection.sendall(b"POST /api/v1/auth/session HTTP/1.1\r\nhost: x\r\n")
        return [status(connection) for connection in connections]


def a_megabyte_of_keys(address: Address) -> list[int | None]:
    """Log in with a body of many unknown keys."""
    with connect(address) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(MANY_KEYS)
        return [status(connection)]


def wrong_logins(address: Address) -> list[int | None]:
    """Guess a token."""
    url = f"http://{address[0]}:{address[1]}/api/v1/auth/session"
    with httpx.Client(transport=httpx.HTTPTransport(local_address=STRANGER)) as client:
        return [client.post(url, json={"token": "guessed"}).status_code]


@pytest.mark.parametrize(
    ("attack", "predicted"),
    [
        (megabytes_of_headers, {431}),
        (half_requests, {408, 503}),
        (a_megabyte_of_keys, {413}),
        (wrong_logins, {401, 429}),
    ],
)
def test_a_flood_delays_no_other_client(
    plane: ControlPlane,
    yard: Client,
    attack: Callable[[Address], list[int | None]],
    predicted: set[int],
) -> None:
    record = read_record(plane.folders.record)
    assert record is not None
    where = urlsplit(record.url)
    assert where.hostname is not None
    assert where.port is not None
    address = where.hostname, where.port
    over = threading.Event()
    answers: Counter[int | None] = Counter()

    def flood() -> None:
        while not over.is_set():
            answers.update(attack(address))

    waits = []
    with ThreadPoolExecutor(ATTACKERS) as pool:
        attackers = [pool.submit(flood) for _ in range(ATTACKERS)]
        try:
            end = time.monotonic() + FLOOD_SECONDS
            while time.monotonic() < end:
                begun = time.monotonic()
                assert next(yard.nodes()).online
                waits.append(time.monotonic() - begun)
        finally:
            over.set()
    for attacker in attackers:
        attacker.result()
    assert quantiles(waits, n=20)[-1] < SLOWEST_SECONDS
    assert set(answers) - {None} == predicted, answers


def test_a_job_is_trained_after_all_floods(yard: Client) -> None:
    job_id = yard.submit(spec("afterwards", training={"steps": 5})).id
    assert finished(yard, job_id).state == "succeeded"
