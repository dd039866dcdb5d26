"""Limits on raw sockets: what a client may send before its request is complete."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from pydantic import ValidationError

from server.api.wire.configuration import configured
from server.api.wire.connections import Connections
from server.api.wire.http_protocol import Limits
from server.core.addresses import Networks, counted_as
from server.core.settings import Settings
from tests.server.api.serving import PATIENCE, listening_on, until

GET = b"GET /echo HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
LIMITS = Limits(head_bytes=4096, headers=20, message_bytes=8192)
SHORT = replace(LIMITS, head_seconds=1.0, body_seconds=1.0, write_seconds=0.2)

Dial = Callable[[], socket.socket]


def small_app() -> FastAPI:
    """Return an application that answers with the number of received bytes."""
    app = FastAPI()

    @app.get("/echo")
    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.get("/client")
    async def client(request: Request) -> str:
        assert request.client is not None
        return request.client.host

    @app.get("/large")
    async def large() -> list[str]:
        return ["x" * 32 * 1024 * 1024]

    return app


@contextmanager
def server(limits: Limits = LIMITS, *, total: int = 100, **settings: Any) -> Iterator[Dial]:
    """Serve the small application; yield a function that connects to it."""
    config = configured(
        small_app(), Settings(**settings), connections=total, limits=limits, shutdown_seconds=1
    )
    with listening_on(config) as address, ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection(address, timeout=PATIENCE))


def answers(connection: socket.socket, data: bytes = b"") -> bytes:
    """Send, and return all received bytes until the server closes the connection."""
    received = b""
    with suppress(ConnectionError):
        connection.sendall(data)
        while part := connection.recv(65536):
            received += part
    return received


def status(answer: bytes) -> int:
    """Return the status of the first answer; 0 without one."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


def detail(answer: bytes) -> str:
    """Return the detail of an answer's problem document."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    text = json.loads(body)["detail"]
    assert isinstance(text, str)
    return text


CLOSE = b"connection: close\r\n\r\n"


def test_an_ordinary_request_is_answered_and_the_connection_is_kept() -> None:
    with server() as dial:
        connection = dial()
        for _ in range(3):
            connection.sendall(POST + b"0123456789")
            assert status(connection.recv(65536)) == 200
        upgrade = GET + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n\r\n"
        connection.sendall(upgrade)  # as curl --http2 sends it
        assert status(connection.recv(65536)) == 200
        assert answers(dial(), GET + CLOSE).endswith(b"0")


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (b"x: " + b"a" * 8192, "4,096 bytes"),  # never ends
        (b"x: " + b"a" * 8192 + b"\r\n\r\n", "4,096 bytes"),  # whole within one read
        (b"x: a\r\n" * 21 + b"\r\n", "20 headers"),
        (b"x: a\r\n" * 21, "20 headers"),
    ],
)
def test_headers_are_bounded(head: bytes, wanted: str) -> None:
    with server() as dial:
        answer = answers(dial(), GET + head)
        assert status(answer) == 431
        assert wanted in detail(answer)
        assert answers(dial(), GET + CLOSE).endswith(b"0")


def test_a_request_line_is_bounded() -> None:
    with server() as dial:
        assert status(answers(dial(), b"GET /" + b"a" * 8192)) == 431
        assert status(answers(dial(), b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\n\r\n")) == 431


def test_what_follows_a_body_is_bounded() -> None:
    chunked = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with server() as dial:
        assert status(answers(dial(), chunked + b"1\r\na\r\n0\r\n" + b"t: a\r\n" * 30)) == 431
        assert status(answers(dial(), chunked + b"1;" + b"a" * 16384)) == 413
        assert status(answers(dial(), chunked + b"1\r\na\r\n" * 4096)) == 413


def test_a_slow_head_and_a_slow_body_are_cut_off() -> None:
    with server(SHORT) as dial:
        silent, head, body = dial(), begun(dial, GET), begun(dial, POST + b"0")
        empty_lines, later = begun(dial, b"\r\n"), begun(dial, POST + b"0123456789")
        assert status(later.recv(65536)) == 200
        later.sendall(b"G")
        assert answers(silent) == b""
        for connection, what in ((head, "headers"), (later, "headers"), (body, "body")):
            answer = answers(connection)
            assert status(answer) == 408
            assert f"the {what} took longer than 1 seconds" in detail(answer)
        assert status(answers(empty_lines)) == 408


def test_a_large_body_has_time_as_long_as_enough_of_it_arrives() -> None:
    with server(replace(SHORT, body_bytes=1)) as dial:
        connection = begun(dial, POST)
        for _ in range(10):  # three times the limit, with one byte per second
            connection.settimeout(0.3)
            with suppress(TimeoutError):
                assert connection.recv(65536) == b""
            connection.sendall(b"0")
        connection.settimeout(PATIENCE)
        assert status(connection.recv(65536)) == 200


def begun(dial: Dial, data: bytes) -> socket.socket:
    """Open a connection and send its first bytes immediately."""
    connection = dial()
    connection.sendall(data)
    return connection


def test_bytes_that_drip_do_not_win_time() -> None:
    with server(SHORT) as dial:
        connection, answer = begun(dial, GET + b"x: "), b""
        connection.settimeout(0.02)
        for _ in range(1000):  # twenty times the limit
            connection.sendall(b"a")
            with suppress(TimeoutError):
                answer = connection.recv(65536)
                break
        assert status(answer) == 408


def test_a_client_that_does_not_read_is_cut_off() -> None:
    with server(SHORT, total=1) as dial:
        connection = begun(dial, b"GET /large HTTP/1.1\r\nhost: x\r\n" + CLOSE)
        until(lambda: status(answers(dial(), GET + CLOSE)) == 200)  # a connection is free again
        assert len(answers(connection)) < 32 * 1024 * 1024


def test_requests_that_wait_on_one_connection_are_bounded() -> None:
    with server() as dial:
        answer = answers(dial(), (GET + b"\r\n") * 100)
        assert answer.count(b"200 OK") < 10
        few = dial()
        few.sendall((GET + b"\r\n") * 4)
        received = b""
        while received.count(b"200 OK") < 4:
            received += few.recv(65536)


def test_connections_of_an_address_are_bounded() -> None:
    with server(trusted_proxies="", max_connections_per_address=16) as dial:
        held = [dial() for _ in range(16)]
        until(lambda: status(answers(dial())) == 503)
        assert "127.0.0.1 has 16 open connections" in detail(answers(dial()))
        held[0].close()
        until(lambda: status(answers(dial(), GET + CLOSE)) == 200)


def test_connections_of_a_proxy_count_in_the_total_alone() -> None:
    with server(total=30, max_connections_per_address=16) as dial:
        for _ in range(29):
            dial()
        forwarded = b"GET /client HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 192.0.2.7\r\n"
        assert answers(dial(), forwarded + CLOSE).endswith(b'"192.0.2.7"')
        dial()
        until(lambda: status(answers(dial())) == 503)


def test_strangers_are_not_believed_what_they_forward() -> None:
    with server(trusted_proxies="192.0.2.0/24") as dial:
        forwarded = b"GET /client HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 192.0.2.7\r\n"
        assert answers(dial(), forwarded + CLOSE).endswith(b'"127.0.0.1"')


def test_what_is_no_http_is_a_problem() -> None:
    with server() as dial:
        answer = answers(dial(), b"\x16\x03\x01\x02\x00\x01\x00")
        assert status(answer) == 400
        assert "Invalid HTTP request" in detail(answer)


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert (
        counted_as("2001:db8:1:2:3::4") == counted_as("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    )
    assert counted_as("::ffff:192.0.2.1") == counted_as("192.0.2.1") == "192.0.2.1"
    assert len(counted_as("x" * 5000)) == 100
    assert "::ffff:10.1.2.3" in Networks(["10.0.0.0/8"])
    assert "nonsense" not in Networks(["10.0.0.0/8"])


def test_counts_of_connections_that_ended_take_no_memory() -> None:
    connections = Connections(per_address=2, total=1000, exempt=Networks([]))
    for number in range(500):
        assert connections.admit(f"10.0.{number // 256}.{number % 256}") is None
    for number in range(500):
        connections.release(f"10.0.{number // 256}.{number % 256}")
    assert not connections._by_address


def test_a_proxy_must_be_an_address() -> None:
    assert Settings(trusted_proxies="10.0.0.1, 192.0.2.0/24").trusted_proxies == (  # type: ignore[arg-type]
        "10.0.0.1",
        "192.0.2.0/24",
    )
    with pytest.raises(ValidationError, match="trusted_proxies"):
        Settings(trusted_proxies="proxy.example")  # type: ignore[arg-type]
