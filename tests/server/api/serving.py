"""The application behind a real socket, for tests beyond the test client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from server.api.wire.configuration import Server, configured
from server.app.factory import create_app
from server.core.context import Context
from server.core.database.engine import Database

PATIENCE = 120.0
"""Longest wait of a test; the machine may be busy with others."""


@contextmanager
def serving(context: Context) -> Iterator[str]:
    """Run an application with its own connections, like another process; yield its root URL."""
    database = Database(context.settings.database_url)
    app = create_app(Context(context.settings, database, context.clock))
    try:
        config = configured(app, context.settings, connections=500, shutdown_seconds=2)
        with listening_on(config, before_end=app.state.inboxes.close) as (host, port):
            yield f"http://{host}:{port}"
    finally:
        database.dispose()


@contextmanager
def listening_on(
    config: uvicorn.Config, *, before_end: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, int]]:
    """Run uvicorn in a thread; yield the address of its socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(config, before_end=before_end)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert thread.is_alive(), "the server ended while it was starting"
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


def until(condition: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
