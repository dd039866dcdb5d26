"""Programs between a machine and a server: they fail requests, and lose, delay or repeat messages.

They run in this process, at its own address on the bridge; a machine's connections to the server
are diverted to them while a block runs.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase

import redis

from tests.chaos.cluster import API, API_PORT, BROKER_PORT, Cluster
from tests.chaos.network import OWN_ADDRESS


class Fate(StrEnum):
    """What becomes of each message to a node."""

    DROPPED = "dropped"
    DELAYED = "delayed"
    REPEATED = "repeated"


@dataclass
class Met:
    """What a proxy has done."""

    met: int = 0
    """Requests or messages that it did not just pass on."""


class RequestFailure(StrEnum):
    """How a request fails."""

    UNAVAILABLE = "503"
    TOO_MANY = "429"
    UNHEARD = "the connection is closed before the server has the request"
    UNANSWERED = "the connection is closed after the server has done what was requested"


@contextlib.contextmanager
def failing_requests(cluster: Cluster, *, every: int) -> Iterator[Met]:
    """Let every n-th request of the nodes to the API fail, in each way in turn."""
    server = _RequestProxy(cluster.address, every)
    to = (OWN_ADDRESS, server.server_port)
    with _serving(server), contextlib.ExitStack() as diverted:
        for node in cluster.nodes.values():
            diverted.enter_context(node.machine.diverted(cluster.address, API_PORT, to=to))
        yield server.met


class _RequestProxy(ThreadingHTTPServer):
    def __init__(self, api: str, every: int) -> None:
        super().__init__((OWN_ADDRESS, 0), _RequestHandler)
        self.api, self.met = api, Met()
        self._every, self._numbers = every, itertools.count(1)
        self._failures = itertools.cycle(RequestFailure)

    def next_failure(self) -> RequestFailure | None:
        """Return how the next request fails; None where it does not."""
        if next(self._numbers) % self._every:
            return None
        self.met.met += 1
        return next(self._failures)


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _RequestProxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        failure = self.server.next_failure()
        if failure in {RequestFailure.UNAVAILABLE, RequestFailure.TOO_MANY}:
            self._answer(int(failure), b"{}")
        elif failure == RequestFailure.UNHEARD:
            self.close_connection = True
        else:
            status, content = self._passed_on(body)
            if failure == RequestFailure.UNANSWERED:
                self.close_connection = True
            else:
                self._answer(status, content)

    def _passed_on(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.server.api, API_PORT, timeout=60)
        try:
            connection.request("POST", self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 502, b"{}"
        finally:
            connection.close()

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: a request takes no line of the results."""


@contextlib.contextmanager
def messages(cluster: Cluster, fate: Fate, *, seconds: float = 0.0) -> Iterator[Met]:
    """Let every message of the schedulers to a node meet a fate while the block runs."""
    met = Met()

    def send(key: bytes, *values: bytes) -> None:
        with (
            contextlib.suppress(redis.RedisError),
            redis.Redis.from_url(cluster.broker_url) as client,
        ):
            client.lpush(key, *values)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((cluster.address, BROKER_PORT)) as broker:
                threading.Thread(target=_pump, args=(broker, self.connection), daemon=True).start()
                while command := _command(self.rfile):
                    raw, words = command
                    if words[0].upper() != b"LPUSH" or not words[1].startswith(b"node."):
                        broker.sendall(raw)
                        continue
                    met.met += 1
                    if fate == Fate.REPEATED:
                        send(*words[1:])
                        broker.sendall(raw)
                        continue
                    if fate == Fate.DELAYED:
                        threading.Timer(seconds, send, words[1:]).start()
                    self.wfile.write(b":1\r\n")  # the length of the list: it was pushed

    server = socketserver.ThreadingTCPServer((OWN_ADDRESS, 0), Handler)
    port = server.server_address[1]
    control = cluster.parts[API].machine
    with (
        _serving(server),
        control.diverted(cluster.address, BROKER_PORT, to=(OWN_ADDRESS, port)),
    ):
        yield met


@contextlib.contextmanager
def _serving(server: socketserver.ThreadingTCPServer | ThreadingHTTPServer) -> Iterator[None]:
    server.daemon_threads, server.block_on_close = True, False
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65_536):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_RDWR)


def _command(stream: BufferedIOBase) -> tuple[bytes, list[bytes]] | None:
    """Return the next command of a Redis client, as bytes and as words; None at the end."""
    raw, words = stream.readline(), []
    if not raw:
        return None
    for _ in range(int(raw[1:])):
        size = stream.readline()
        word = stream.read(int(size[1:]) + 2)
        raw += size + word
        words.append(word[:-2])
    return raw, words
