"""Destinations of the export: a file to which lines are appended, and a syslog receiver."""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from server.core.settings import SYSLOG_PORTS, Settings
from trainyard.run.atomic import sync_folder

PRIORITY = 13 * 8 + 5
"""Facility `log audit` and severity `notice` of RFC 5424."""
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 5.0
"""Time that a receiver has to read the lines and close the connection."""


class Destination(Protocol):
    """A place to which the export writes."""

    name: str
    """Name of the stored position."""

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines; return when they are stored or sent, or raise `OSError`."""


class AuditFile:
    """A file of JSON lines, which may be rotated by renaming it."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines and sync them to the disk; after an error, remove what was written of them.

        The file is opened each time, so that a rotated file is created again. A line that a crash
        has cut gets an end, so that the next line is whole. The file is locked, so that a former
        leader on the same machine appends nothing that the removal would cut.

        Raises:
            OSError: the lines were not written, or another process has locked the file.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with open(os.open(self.path, flags, 0o640), "r+b", buffering=0) as file:  # noqa: PTH123
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end = file.seek(0, os.SEEK_END)
            is_cut = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
            content = memoryview((b"\n" if is_cut else b"") + b"".join(lines))
            try:
                while content:
                    content = content[file.write(content) :]
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), end)
                raise
        if end == 0:
            sync_folder(self.path.parent)


class Syslog:
    """A receiver of RFC 5424 messages over TLS, TCP or UDP."""

    name = "syslog"

    def __init__(self, url: str) -> None:
        """Take an address such as `tls://logs.example.org:6514`; the settings have checked it."""
        parts = urlsplit(url)
        self.scheme, self.host = parts.scheme, parts.hostname or ""
        self.port = parts.port or SYSLOG_PORTS[parts.scheme]
        self._own = socket.gethostname() or "-"

    def write(self, lines: Sequence[bytes]) -> None:
        """Send each line as a message; raise `OSError` if the receiver has not taken all of them.

        Each call opens a connection, ends it, and waits until the receiver has ended it too: the
        receiver has then read everything. A receiver that leaves it open may have read nothing.
        """
        messages = [self._message(line) for line in lines]
        if self.scheme == "udp":
            family, kind, *_, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_DGRAM
            )[0]
            with closing(socket.socket(family, kind)) as datagrams:
                for message in messages:
                    datagrams.sendto(message, address)
            return
        plain = socket.create_connection((self.host, self.port), timeout=CONNECT_SECONDS)
        with closing(plain):
            connection = plain
            if self.scheme == "tls":
                context = ssl.create_default_context()
                connection = context.wrap_socket(plain, server_hostname=self.host)
            with closing(connection):
                # Octet counting of RFC 5425 and RFC 6587.
                connection.sendall(b"".join(b"%d %b" % (len(each), each) for each in messages))
                _end(connection)

    def _message(self, line: bytes) -> bytes:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head = f"<{PRIORITY}>1 {now} {self._own} trainyard - audit - "
        return head.encode() + line.rstrip(b"\n")


def _end(connection: socket.socket) -> None:
    """End the own direction of a connection, and wait for the end of the other one."""
    connection.settimeout(CLOSE_SECONDS)
    try:
        if isinstance(connection, ssl.SSLSocket):
            with suppress(ssl.SSLEOFError):  # an end without the notice of TLS
                connection.unwrap()
            return
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    except TimeoutError:
        words = f"the receiver did not end the connection within {CLOSE_SECONDS:g} s"
        raise TimeoutError(words) from None


def destinations(settings: Settings) -> list[Destination]:
    """Return the destinations that the settings name."""
    found: list[Destination] = []
    if settings.audit_file is not None:
        found.append(AuditFile(settings.audit_file))
    if settings.audit_syslog is not None:
        found.append(Syslog(settings.audit_syslog))
    return found
