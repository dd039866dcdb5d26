"""HTTP clients of all programs: a token reaches its server alone."""

from __future__ import annotations

import ast
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from provisioner.api import ProvisionerApi
from trainyard.client.errors import ApiError, UsageError
from trainyard.client.sdk import Client
from trainyard.outside.http_client import answers_with_success, http_client
from trainyard.outside.proxies import ProxyError
from trainyard.protocol.node_sources.messages import MessagesRequest, RequestClaim
from trainyard.protocol.worker_messages import PROTOCOL
from worker.api import WorkerApi

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "ty_api_a-token"
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass
class Heard:
    """A server that keeps the first line and the token of each request, and refuses it."""

    url: str
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    status: int = 403
    location: str | None = None


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, *map(str.upper, NAMES)):
        monkeypatch.delenv(name, raising=False)


def serving() -> Iterator[Heard]:
    heard = Heard("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            heard.requests.append((self.path, self.headers.get("Authorization")))
            self.send_response(heard.status)
            if heard.location:
                self.send_header("Location", heard.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - a name of the standard library

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield heard
    server.shutdown()
    thread.join()
    server.server_close()


server = pytest.fixture(serving)
proxy = pytest.fixture(serving)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_no_token_of_this_machine_reaches_a_proxy(
    server: Heard, proxy: Heard, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, proxy.url)
    with Client(server.url, TOKEN) as yard, pytest.raises(ApiError):
        yard.session()
    with WorkerApi(server.url, TOKEN) as worker, pytest.raises(ApiError):
        worker.messages(MessagesRequest(protocol=PROTOCOL, node="node-1", wait_seconds=0))
    with ProvisionerApi(server.url, TOKEN) as provisioner, pytest.raises(ApiError):
        provisioner.claim(
            "r", RequestClaim(protocol=PROTOCOL, source="s", secret_hashes=("0" * 64,))
        )
    assert not answers_with_success(f"{server.url}/readyz", seconds=5)
    assert proxy.requests == []
    sent = ("auth/session", "workers/messages", "provisioners/requests/r/claim")
    assert server.requests == [
        *((f"/api/v1/{path}", f"Bearer {TOKEN}") for path in sent),
        ("/readyz", None),
    ]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_for_another_machine_is_the_choice_of_who_sets_it(
    proxy: Heard, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, proxy.url)
    with Client("http://server.test:8470", TOKEN) as yard, pytest.raises(ApiError):
        yard.session()
    assert proxy.requests == [("http://server.test:8470/api/v1/auth/session", f"Bearer {TOKEN}")]


@pytest.mark.parametrize("place", ["client", "worker", "provisioner"])
@pytest.mark.parametrize("value", ["socks5://ada:secret@127.0.0.1:1", "gopher://ada:secret@a"])
def test_a_proxy_that_cannot_be_used_is_named_where_it_is_needed(
    place: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    kinds = {"client": Client, "worker": WorkerApi, "provisioner": ProvisionerApi}
    expected = UsageError if place == "client" else ProxyError
    with pytest.raises(expected, match="ALL_PROXY='") as caught:
        kinds[place]("http://server.test:8470", TOKEN)
    assert "secret" not in str(caught.value)
    kinds[place]("http://127.0.0.1:8470", TOKEN)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "HTTPS_PROXY"])
def test_a_proxy_that_does_not_answer_is_named_without_its_login(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv(name, f"http://ada:sec@ret@127.0.0.1:{port}")
    url = f"{name.partition('_')[0].lower()}://server.test/"
    why = f"through the proxy http://127.0.0.1:{port} of the environment"
    with http_client(url) as client, pytest.raises(httpx.ConnectError, match=why):
        client.get(url)


def test_no_redirect_takes_a_token_elsewhere(server: Heard, proxy: Heard) -> None:
    """A proxy's page, or a server that has moved."""
    server.status, server.location = 307, f"{proxy.url}/api/v1/session"
    with Client(server.url, TOKEN) as yard, pytest.raises(ApiError) as caught:
        yard.session()
    assert caught.value.status == 307
    assert len(server.requests) == 1
    assert proxy.requests == []


def test_a_request_to_another_server_takes_the_proxy_of_its_own_url(
    server: Heard, proxy: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("HTTPS_PROXY", "gopher://a")
    with http_client(server.url) as client:
        client.get(server.url)
        client.get("http://server.test/")
        with pytest.raises(httpx.ProxyError, match="HTTPS_PROXY='gopher://a'"):
            client.get("https://server.test/")
    assert [path for path, _ in proxy.requests] == ["http://server.test/"]
    assert len(server.requests) == 1


FORBIDDEN = frozenset(
    {"Client", "AsyncClient", "HTTPTransport", "get", "post", "put", "request", "stream"}
)


def clients_made(path: Path) -> Iterator[str]:
    """Calls that make a client of their own, and modules that send requests by themselves."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if isinstance(of, ast.Name) and of.id == "httpx" and node.func.attr in FORBIDDEN:
                yield f"{path.relative_to(ROOT)}:{node.lineno}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported = {alias.name for alias in node.names}
            names = {node.module} if isinstance(node, ast.ImportFrom) else imported
            if names & {"urllib.request", "requests", "aiohttp", "http.client"}:
                yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_one_place_makes_the_clients_of_all_programs() -> None:
    parts = ("library", "server", "worker", "trainer", "embedded", "provisioner")
    found = [
        call
        for part in parts
        for path in (ROOT / part).rglob("*.py")
        for call in clients_made(path)
    ]
    assert {call.rpartition(":")[0] for call in found} == {
        "library/trainyard/outside/http_client.py"
    }
