"""The API server of a test's cluster: HTTP on loopback, with faults, and a kubeconfig for it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.provisioner.kubernetes.api import NAMESPACE, KubernetesApi, RefusedError


@contextmanager
def served(api: KubernetesApi) -> Iterator[str]:
    """Serve a cluster on a port that the kernel chose; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            line = f"{self.command} {self.path}"
            status, content = respond(
                api, line, authorization=self.headers.get("Authorization", ""), body=body
            )
            if status is None:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the base's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def respond(
    api: KubernetesApi, line: str, *, authorization: str, body: bytes
) -> tuple[int | None, bytes]:
    """Return status and body of the answer to a request; no status if no answer is sent."""
    method, _, target = line.partition(" ")
    url = urlsplit(target)
    with api.lock:
        api.lines.append(line)
        fault = next((f for f in api.faults if f.times and re.search(f.match, line)), None)
        if fault is not None:
            fault.times -= 1
    if fault is not None and not fault.lost:
        if fault.seconds:
            api.woken.wait(fault.seconds)
        message = json.dumps({"kind": "Status", "message": "set by the test"}).encode()
        return fault.status, message if fault.body is None else fault.body
    try:
        if authorization != f"Bearer {api.token}":
            raise RefusedError(401, "Unauthorized")
        with api.lock:
            content = json.loads(body) if body else {}
            answer = api.answer(method, url.path, query=dict(parse_qsl(url.query)), body=content)
            text = json.dumps(answer).encode()
    except RefusedError as error:
        status = {"kind": "Status", "message": str(error), "code": error.status}
        return error.status, json.dumps(status).encode()
    return (None, b"") if fault is not None else (200, text)


def kubeconfig(folder: Path, url: str, token: str = "the-token") -> Path:
    """Write a kubeconfig for the cluster and return its path."""
    cluster = {"name": "fake", "cluster": {"server": url}}
    user = {"name": "provisioner", "user": {"token": token}}
    context = {"cluster": "fake", "user": "provisioner", "namespace": NAMESPACE}
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster],
                "users": [user],
                "contexts": [{"name": "fake", "context": context}],
                "current-context": "fake",
            }
        ),
        encoding="utf-8",
    )
    return path
