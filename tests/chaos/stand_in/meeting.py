"""The ranks of a stand-in meet at each step over TCP: rank 0 hears all, and decides for all."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

MEETING_SECONDS = 300.0
PAUSE_SECONDS = 0.05


class Meeting:
    """A star of connections; one that breaks ends the rank, and one that is silent holds it up."""

    def __init__(self) -> None:
        """Connect to the other ranks.

        Raises:
            OSError: they did not come, or the port is taken.
        """
        self.rank, self._world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        port = int(os.environ["MASTER_PORT"])
        if self._world == 1:
            self._links = []
        elif self.rank == 0:
            with socket.create_server(("", port), backlog=self._world) as server:
                server.settimeout(MEETING_SECONDS)
                self._links = [server.accept()[0] for _ in range(self._world - 1)]
        else:
            self._links = [_connected(os.environ["MASTER_ADDR"], port)]
        for link in self._links:
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def agree(self, decide: Callable[[], Any]) -> Any:
        """Wait for all ranks, and return what rank 0 decides, on every rank.

        Raises:
            ConnectionError: a rank has ended.
        """
        if self.rank:
            self._links[0].sendall(b"\n")
            return json.loads(_line(self._links[0]))
        for link in self._links:
            _line(link)
        decision = decide()
        for link in self._links:
            link.sendall(json.dumps(decision).encode() + b"\n")
        return decision


def _connected(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + MEETING_SECONDS
    while True:
        try:
            return socket.create_connection((host, port), timeout=MEETING_SECONDS)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)


def _line(link: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        part = link.recv(65_536)
        if not part:
            raise ConnectionError("connection closed by peer")
        received += part
    return received
