"""Where the server is and which token opens it: arguments, environment, then the user's file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from client.errors import NotConfiguredError


@dataclass(frozen=True)
class Connection:
    """How to reach a server."""

    url: str
    """Such as `http://127.0.0.1:8470`, without `/api/v1`."""
    token: str | None
    """Bearer token."""


def config_path() -> Path:
    """Return the file in which `login` and `up` keep the user's connection."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "trainyard" / "config.json"


def resolve(url: str | None = None, token: str | None = None) -> Connection:
    """Return the connection: what is given, else TRAINYARD_URL and TRAINYARD_TOKEN, else the file.

    The token in the file is only ever sent to the server that the file names.

    Raises:
        NotConfiguredError: no address is known.
    """
    saved = load()
    url = url or os.environ.get("TRAINYARD_URL") or (saved.url if saved else None)
    if not url:
        raise NotConfiguredError(
            "No server is known. Start one here with `trainyard up`, log in to one with "
            "`trainyard login URL`, or set TRAINYARD_URL and TRAINYARD_TOKEN."
        )
    url = url.rstrip("/")
    token = token or os.environ.get("TRAINYARD_TOKEN")
    if not token and saved and saved.url == url:
        token = saved.token
    return Connection(url, token or None)


def load() -> Connection | None:
    """Return what the user's file says; nothing when it is absent or not legible."""
    try:
        content = json.loads(config_path().read_text(encoding="utf-8"))
        return Connection(str(content["url"]), content.get("token"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(connection: Connection) -> Path:
    """Write the user's file, readable by that user alone, and return its path."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"url": connection.url, "token": connection.token}, file, indent=2)
        file.write("\n")
    draft.replace(path)
    return path
