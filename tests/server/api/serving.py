"""The application behind a real socket, for tests of what a test client cannot do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from server.app import create_app
from server.context import Context
from server.database import Database

PATIENCE = 30.0


@contextmanager
def serving(context: Context) -> Iterator[str]:
    """Run an application with connections of its own, as another process would; its root URL."""
    database = Database(context.settings.database_url)
    app = create_app(Context(context.settings, database, context.clock))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        database.dispose()


def until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
