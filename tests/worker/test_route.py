"""The connection to the server: certificates of a private authority, and a proxy."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.worker.conftest import Place
from tests.worker.fake_server import NODE_TOKEN
from trainyard.protocol.node_sources.messages import MessagesReply, MessagesRequest
from trainyard.protocol.worker_messages import PROTOCOL
from worker.api import ServerAway, WorkerApi
from worker.node.node_store import NodeStore

ELSEWHERE = "server.test"
"""A host that only the proxy reaches."""
POLL = MessagesRequest(protocol=PROTOCOL, node="node-1", wait_seconds=0)


@dataclass
class Tunnel:
    """A proxy that opens tunnels (CONNECT), and no more."""

    port: int
    targets: list[str] = field(default_factory=list)


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def couple(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until one end closes."""

    def run() -> None:
        back = threading.Thread(target=pump, args=(other, one))
        back.start()
        pump(one, other)
        back.join()
        one.close()
        other.close()

    threading.Thread(target=run, daemon=True).start()


@pytest.fixture
def proxy() -> Iterator[Tunnel]:
    """A proxy on its own port."""
    listener = listening()
    made = Tunnel(listener.getsockname()[1])

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += client.recv(1)
            method, target, _ = head.decode().split(" ", 2)
            assert method == "CONNECT"
            made.targets.append(target)
            port = int(target.rpartition(":")[2])  # it resolves each host to this machine
            server = socket.create_connection(("127.0.0.1", port))
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            couple(client, server)

    threading.Thread(target=serve, daemon=True).start()
    yield made
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of both hosts, next to its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    names = (x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName(ELSEWHERE))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "ca.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    path.with_suffix(".key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


@pytest.fixture
def url(place: Place, certificate: Path) -> Iterator[str]:
    """The `https` URL of the fake server, behind a TLS terminator."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    listener = listening()
    port = int(place.server.url.rpartition(":")[2])

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                wrapped = context.wrap_socket(client, server_side=True)
            except OSError:  # the client does not trust the certificate
                client.close()
                continue
            couple(wrapped, socket.create_connection(("127.0.0.1", port)))

    threading.Thread(target=serve, daemon=True).start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def poll(url: str, ca_file: Path | None) -> MessagesReply:
    with WorkerApi(url, NODE_TOKEN, ca_file=ca_file) as api:
        return api.messages(POLL)


def test_only_the_named_authority_is_trusted(url: str, certificate: Path) -> None:
    assert poll(url, certificate) == MessagesReply()
    with pytest.raises(ServerAway, match="CERTIFICATE_VERIFY_FAILED"):
        poll(url, None)


def test_a_proxy_is_used_but_for_this_machine_and_the_hosts_that_it_is_not_for(
    url: str, certificate: Path, proxy: Tunnel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    assert poll(url, certificate) == MessagesReply()
    assert proxy.targets == []
    there = url.replace("127.0.0.1", ELSEWHERE)
    assert poll(there, certificate) == MessagesReply()
    assert proxy.targets == [there.removeprefix("https://")]
    with pytest.raises(ServerAway, match="CERTIFICATE_VERIFY_FAILED"):
        poll(there, None)  # the proxy does not terminate TLS
    monkeypatch.setenv("NO_PROXY", ELSEWHERE)
    with pytest.raises(ServerAway, match=ELSEWHERE):
        poll(there, certificate)  # no such host
    assert len(proxy.targets) == 2


def test_a_worker_names_a_proxy_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://ada:secret@proxy:70")
    with pytest.raises(ValueError, match="HTTPS_PROXY='gopher://proxy:70': no kind of proxy"):
        WorkerApi(f"https://{ELSEWHERE}", NODE_TOKEN)
    WorkerApi("https://127.0.0.1:1", NODE_TOKEN)


def test_certificates_are_read_where_they_are_used(
    url: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them takes longer than a request. A server's address may change to `https`."""
    read: list[object] = []
    create = ssl.create_default_context

    def counted(**options: Any) -> ssl.SSLContext:
        read.append(options)
        return create(**options)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    with WorkerApi("http://127.0.0.1:1", NODE_TOKEN) as api:
        with pytest.raises(ServerAway, match="refused"):
            api.messages(POLL)
        assert read == []
        api.url = url
        with pytest.raises(ServerAway, match="CERTIFICATE_VERIFY_FAILED"):
            api.messages(POLL)
        assert read
    with WorkerApi("http://127.0.0.1:1", NODE_TOKEN, ca_file=certificate) as api:
        api.url = url
        assert api.messages(POLL) == MessagesReply()


def test_an_address_that_changes_within_a_call_is_not_trusted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without certificates would send the token to any host that answers."""
    changing = iter(["http://127.0.0.1:1"])
    read = property(lambda _: next(changing, url), lambda *_: None)
    monkeypatch.setattr(WorkerApi, "url", read, raising=False)
    with WorkerApi(url, NODE_TOKEN) as api:
        for reason in ("refused", "CERTIFICATE_VERIFY_FAILED"):
            with pytest.raises(ServerAway, match=reason):
                api.messages(POLL)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_file_without_certificates_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=f"TRAINYARD_CA_FILE={path} is no file of certificates"):
        WorkerApi("https://127.0.0.1:1", None, ca_file=path)


def test_supervisors_trust_what_the_worker_trusts(tmp_path: Path, certificate: Path) -> None:
    store = NodeStore(tmp_path)
    store.remember_server("https://127.0.0.1:1", ca_file=certificate)
    assert store.server_ca is not None
    assert store.server_ca.read_text() == certificate.read_text()
    store.remember_server("https://127.0.0.1:1")
    assert store.server_ca is None
