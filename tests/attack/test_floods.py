"""A stranger floods the server with what needs no token."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from statistics import quantiles
from urllib.parse import urlsplit

import httpx
import pytest

from client.sdk import Trainyard
from embedded.record import read_record
from tests.e2e.control_plane import ControlPlane, finished, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
FLOOD_SECONDS = 5.0
SLOWEST_SECONDS = 2.0
"""95th percentile of the answer to someone else meanwhile, on two busy cores."""


STRANGER = "127.0.0.2"
"""Address of the attackers: the others of this machine use another one."""


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect from the address of a stranger."""
    return socket.create_connection(address, timeout=10, source_address=(STRANGER, 0))


def megabytes_of_headers(address: tuple[str, int]) -> None:
    """Send headers without an end."""
    with connect(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
        for number in range(64):
            connection.sendall(b"x-%d: " % number + b"a" * 64 * 1024 + b"\r\n")


def half_a_request(address: tuple[str, int]) -> None:
    """Open a connection, send half of a head, and wait."""
    with connect(address) as connection:
        connection.sendall(b"POST /api/v1/auth/session HTTP/1.1\r\nhost: x\r\n")
        connection.recv(1)


def a_megabyte_of_keys(address: tuple[str, int]) -> None:
    """Log in with a body of a hundred thousand unknown keys."""
    body = json.dumps({f"key{number}": number for number in range(60_000)}).encode()
    head = (
        "POST /api/v1/auth/session HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with connect(address) as connection:
        connection.sendall(head.encode() + body)
        connection.recv(65536)


def wrong_logins(address: tuple[str, int]) -> None:
    """Guess a token."""
    url = f"http://{address[0]}:{address[1]}/api/v1/auth/session"
    with httpx.Client(transport=httpx.HTTPTransport(local_address=STRANGER)) as client:
        client.post(url, json={"token": "guessed"})


@pytest.mark.parametrize(
    "attack", [megabytes_of_headers, half_a_request, a_megabyte_of_keys, wrong_logins]
)
def test_a_flood_delays_nobody(
    plane: ControlPlane, yard: Trainyard, attack: Callable[[tuple[str, int]], None]
) -> None:
    record = read_record(plane.folders.record)
    assert record is not None
    where = urlsplit(record.url)
    assert where.hostname is not None
    assert where.port is not None
    address = where.hostname, where.port
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, httpx.HTTPError):  # that it is cut off is the defence
                attack(address)

    attackers = [threading.Thread(target=flood) for _ in range(8)]
    for thread in attackers:
        thread.start()
    waits = []
    try:
        end = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end:
            begun = time.monotonic()
            assert next(yard.nodes()).online
            waits.append(time.monotonic() - begun)
    finally:
        over.set()
        for thread in attackers:
            thread.join()
    assert quantiles(waits, n=20)[-1] < SLOWEST_SECONDS


def test_a_job_is_trained_after_all_floods(yard: Trainyard) -> None:
    job_id = yard.submit(spec("afterwards", training={"steps": 5})).id
    assert finished(yard, job_id).state == "succeeded"
