"""The export to a file and to a syslog receiver: once each row is there, in order, after faults."""

from __future__ import annotations

import fcntl
import json
import re
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from pydantic import ValidationError
from sqlalchemy import delete, select

from server.core.audit import chain, exporting
from server.core.audit import destinations as destinations_module
from server.core.audit.audit_tables import audit_log, audit_marks
from server.core.audit.destinations import AuditFile, Syslog, destinations
from server.core.audit.exporting import AuditExporter, export_batch
from server.core.audit.verification import export_problems, known_digests, verify
from server.core.context import Context
from server.core.settings import Settings
from tests.server.clock import FakeClock
from tests.server.core.audit.entries import sealed, waiting

MESSAGE = re.compile(rb"<109>1 \S+Z \S+ trainyard - audit - (\{.*\})")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 4 rows, and segments of 10."""
    monkeypatch.setattr(exporting, "BATCH", 4)
    monkeypatch.setattr(chain, "BATCH", 4)
    monkeypatch.setattr(chain, "SEGMENT_ROWS", 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def seqs(content: bytes) -> list[int | str]:
    return [json.loads(line).get("seq", "anchor") for line in content.splitlines()]


def test_a_file_gets_each_row_and_anchor_once(context: Context, path: Path) -> None:
    sealed(context, 14)
    file = AuditFile(path)
    while export_batch(context, file):
        pass
    assert seqs(path.read_bytes()) == [*range(1, 13), "anchor", 13, 14]
    sealed(context, 1)
    assert export_batch(context, file) == 1
    assert seqs(path.read_bytes())[-2:] == [14, 15]
    assert path.stat().st_mode & 0o777 == 0o640
    assert verify(context, known_digests(path.read_bytes().splitlines())).problems == []


def test_a_rotated_file_is_created_again(context: Context, path: Path) -> None:
    sealed(context, 2)
    export_batch(context, AuditFile(path))
    path.rename(path.with_suffix(".1"))
    sealed(context, 1)
    export_batch(context, AuditFile(path))
    assert seqs(path.read_bytes()) == [3]


def test_a_full_disk_keeps_the_position_and_no_half_line(context: Context, path: Path) -> None:
    sealed(context, 3)
    file = AuditFile(path)
    export_batch(context, file)
    before = path.read_bytes()
    sealed(context, 3)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write([b"x" * 1000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    export_batch(context, file)
    assert seqs(path.read_bytes()) == [1, 2, 3, 4, 5, 6]


def test_a_line_that_a_crash_cut_does_not_spoil_the_next_one(context: Context, path: Path) -> None:
    path.write_bytes(b'{"seq":1,"at')
    sealed(context, 2)
    export_batch(context, AuditFile(path))
    lines = path.read_bytes().splitlines()
    assert (lines[0], seqs(b"\n".join(lines[1:]))) == (b'{"seq":1,"at', [1, 2])
    check = verify(context, known_digests(lines))
    assert (check.unread, check.compared, check.problems) == (1, 2, [])


def test_a_crash_before_the_position_repeats_the_rows(
    context: Context, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed(context, 3)

    def crash(*_: object) -> None:
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "insert_or_replace", crash)
        with pytest.raises(RuntimeError, match="crash"):
            export_batch(context, AuditFile(path))
    export_batch(context, AuditFile(path))
    assert seqs(path.read_bytes()) == [1, 2, 3, 1, 2, 3]


def test_another_leader_cuts_no_line(context: Context, path: Path) -> None:
    """A removal after an error must not reach lines that another process has appended."""
    sealed(context, 2)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            export_batch(context, AuditFile(path))
    assert position(context, "file") == 0
    export_batch(context, AuditFile(path))
    assert seqs(path.read_bytes()) == [1, 2]


def test_an_error_of_any_kind_is_noted_and_tried_again(
    context: Context, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = context.settings.model_copy(update={"audit_file": path})
    context = replace(context, settings=settings)
    exporter = AuditExporter(context)
    sealed(context, 2)

    def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    with monkeypatch.context() as patch:
        patch.setattr(AuditFile, "write", fail)
        run(exporter)
    assert export_problems(context) == [
        "the export to file stopped at row 0: RuntimeError: unforeseen"
    ]
    clock.advance(exporting.RETRY_SECONDS)
    run(AuditExporter(context))  # of another leader, which knows of no problem
    assert export_problems(context) == []
    assert seqs(path.read_bytes()) == [1, 2]


def test_rows_that_retention_deleted_before_their_export_are_named(
    context: Context, path: Path
) -> None:
    sealed(context, 2)
    export_batch(context, AuditFile(path))
    sealed(context, 4)
    with context.database.write() as connection:
        connection.execute(delete(audit_log).where(audit_log.c.seq <= 5))
    export_batch(context, AuditFile(path))
    assert seqs(path.read_bytes()) == [1, 2, 6]
    (row,) = waiting(context)
    assert (row["operation"], row["object"]) == ("audit_export_gap", "audit/file")
    assert row["after"] == {"until_seq": 5, "rows": 3}


def test_a_receiver_that_leaves_the_connection_open_has_not_taken_the_rows(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destinations_module, "CLOSE_SECONDS", 0.2)
    sealed(context, 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(TimeoutError, match="did not end the connection"):
            export_batch(context, Syslog(url))
    assert position(context, "syslog") == 0


class Receiver:
    """A syslog receiver over TCP, which a test can stop and start at the same port."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[bytes] = []
        self.server = socket.create_server(("127.0.0.1", port))
        self.port = self.server.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with closing(connection), connection.makefile("rb") as stream:
                self.received += frames(stream.read())

    def stop(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join()


def frames(content: bytes) -> Iterator[bytes]:
    """Yield the messages of octet-counted frames."""
    while content:
        size, _, rest = content.partition(b" ")
        yield rest[: int(size)]
        content = rest[int(size) :]


def test_a_receiver_gets_messages_of_rfc_5424(context: Context) -> None:
    sealed(context, 2, after={"name": "ü"})
    receiver = Receiver()
    export_batch(context, Syslog(f"tcp://127.0.0.1:{receiver.port}"))
    receiver.stop()
    found = [MESSAGE.fullmatch(each) for each in receiver.received]
    assert all(found)
    texts = [json.loads(each.group(1)) for each in found if each]
    assert [(text["seq"], text["after"]["name"]) for text in texts] == [(1, "ü"), (2, "ü")]


@dataclass
class SecureReceiver:
    """A receiver over TLS, for one connection."""

    certificate: Path
    ends: str
    """How it ends the connection: `with notice`, `without notice`, or `never`."""

    def __post_init__(self) -> None:
        self.received: list[bytes] = []
        self.over = threading.Event()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"tls://127.0.0.1:{self.server.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        plain, _ = self.server.accept()
        with (
            suppress(OSError),  # a client that refuses the certificate
            closing(plain),
            closing(context.wrap_socket(plain, server_side=True)) as connection,
        ):
            content = b""
            while chunk := connection.recv(4096):
                content += chunk
            self.received += frames(content)
            if self.ends == "never":
                self.over.wait(30)
            elif self.ends == "with notice":
                connection.unwrap()

    def stop(self) -> None:
        self.over.set()
        self.thread.join()
        self.server.close()


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a key and a certificate of 127.0.0.1, which the system trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "logs")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, SHA256())
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = tmp_path / "logs.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *plain)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


@pytest.mark.parametrize("ends", ["with notice", "without notice"])
def test_a_receiver_over_tls_gets_each_row(context: Context, certificate: Path, ends: str) -> None:
    sealed(context, 3)
    receiver = SecureReceiver(certificate, ends)
    export_batch(context, Syslog(receiver.url))
    receiver.stop()
    assert len(receiver.received) == 3
    assert position(context, "syslog") == 3


def test_a_receiver_over_tls_that_never_ends_has_not_taken_the_rows(
    context: Context, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destinations_module, "CLOSE_SECONDS", 0.5)
    sealed(context, 3)
    receiver = SecureReceiver(certificate, "never")
    with pytest.raises(TimeoutError, match="did not end the connection"):
        export_batch(context, Syslog(receiver.url))
    receiver.stop()
    assert position(context, "syslog") == 0


def test_a_receiver_with_an_unknown_certificate_gets_nothing(
    context: Context, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    sealed(context, 3)
    receiver = SecureReceiver(certificate, "with notice")
    with pytest.raises(ssl.SSLCertVerificationError):
        export_batch(context, Syslog(receiver.url))
    receiver.stop()
    assert position(context, "syslog") == 0


def test_datagrams_have_one_message_each(context: Context) -> None:
    sealed(context, 2)
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        export_batch(context, Syslog(f"udp://127.0.0.1:{server.getsockname()[1]}"))
        texts = [server.recv(65_535) for _ in range(2)]
    assert all(MESSAGE.fullmatch(text) for text in texts)


def test_a_receiver_that_dies_stops_nothing_and_catches_up(
    context: Context, clock: FakeClock
) -> None:
    receiver = Receiver()
    port = receiver.port
    url = f"tcp://127.0.0.1:{port}"
    settings = context.settings.model_copy(update={"audit_syslog": url})
    context = replace(context, settings=settings)
    exporter = AuditExporter(context)
    sealed(context, 3)
    run(exporter)
    receiver.stop()
    sealed(context, 6)
    run(exporter)
    assert "stopped at row 3: ConnectionRefusedError" in export_problems(context)[0]
    run(exporter)  # waits before the next try
    later = Receiver(port)
    run(exporter)
    assert later.received == []
    clock.advance(exporting.RETRY_SECONDS)
    run(exporter)
    later.stop()
    received = [*receiver.received, *later.received]
    found = [json.loads(each.partition(b" - audit - ")[2]).get("seq") for each in received]
    assert found == [*range(1, 10)]
    assert export_problems(context) == []
    assert position(context, "syslog") == 9


def run(exporter: AuditExporter) -> None:
    exporter.run()
    for each in exporter._exports:
        if each._thread is not None:
            each._thread.join()


def position(context: Context, name: str) -> int:
    with context.database.read() as connection:
        query = select(audit_marks.c.seq).where(audit_marks.c.name == name)
        return int(connection.scalar(query) or 0)


def test_two_destinations_have_positions_of_their_own(context: Context, path: Path) -> None:
    given = {"audit_file": path, "audit_syslog": "tcp://127.0.0.1:1"}
    settings = context.settings.model_copy(update=given)
    context = replace(context, settings=settings)
    sealed(context, 5)
    run(AuditExporter(context))
    assert (position(context, "file"), position(context, "syslog")) == (5, 0)
    assert [each.name for each in destinations(settings)] == ["file", "syslog"]
    assert destinations(Settings()) == []


@pytest.mark.parametrize(
    "given", ["logs:514", "http://logs", "tcp://", "tcp://logs:99999", "tls://logs/x", "tcp://a:b"]
)
def test_a_wrong_address_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="tls://HOST:PORT"):
        Settings(audit_syslog=given)
