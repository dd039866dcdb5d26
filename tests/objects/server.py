"""An S3 server in its own process, which fails on request: `python server.py`.

It is moto's, on a port that the kernel chose. `POST /_faults` with a JSON list sets how the next
requests fail: each fault has a `method`, a `match` that the path with its query must hold, `times`,
and `status` with `code`, or `drop` to hang up (`after` so many bytes of the answer's body), or
`lost` to do what is asked and to hang up then.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

ERROR = "<Error><Code>{code}</Code><Message>set by the test</Message></Error>"
Start = Callable[..., Any]


class Faults:
    """moto's application, with faults that a test sets."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._faults: list[dict[str, Any]] = []
        self._log: list[str] = []

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        line = f"{environ['REQUEST_METHOD']} {path}?{environ['QUERY_STRING']}"
        if path == "/_faults":
            return self._told(environ, start)
        if path == "/_log":
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._log).encode()]
        self._log.append(line)
        fault = self._fault(environ["REQUEST_METHOD"], line)
        if fault is None:
            return self._application(environ, start)  # type: ignore[no-any-return]
        if "lost" in fault:  # the work is done, its answer is lost
            b"".join(self._application(environ, lambda *_: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if "drop" in fault or "lost" in fault:
            return self._drop(environ, start, fault)
        start(f"{fault['status']} Fault", [("Content-Type", "application/xml")])
        head = environ["REQUEST_METHOD"] == "HEAD"  # its answers have no body
        return [] if head else [ERROR.format(code=fault["code"]).encode()]

    def _told(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        content = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with self._lock:
            self._faults = json.loads(content)
            self._log = []
        start("200 OK", [])
        return []

    def _fault(self, method: str, line: str) -> dict[str, Any] | None:
        with self._lock:
            for fault in self._faults:
                if fault["method"] == method and re.search(fault["match"], line) and fault["times"]:
                    fault["times"] -= 1
                    return fault
        return None

    def _drop(self, environ: dict[str, Any], start: Start, fault: dict[str, Any]) -> list[bytes]:
        """Hang up after some bytes of a longer answer, or after none."""
        connection: socket.socket = environ["werkzeug.socket"]
        if after := fault.get("after"):
            head = "HTTP/1.1 206 Partial Content\r\nContent-Length: 1048576\r\n\r\n"
            connection.sendall(head.encode() + bytes(after))
        connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError("set by the test")


class QuietHandler(WSGIRequestHandler):
    """Logs neither requests nor answers that no client read."""

    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until standard input is closed, by the parent process or by its end."""
    application = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=QuietHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
