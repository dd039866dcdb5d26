"""Address and token of the server, from arguments, the environment, or a profile's file."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from trainyard.base.names import LEGAL, NAME
from trainyard.client.errors import NotConfiguredError
from trainyard.run.atomic import replace_file


@dataclass(frozen=True)
class Connection:
    """Address and token of a server."""

    url: str
    """Base URL, such as `http://127.0.0.1:8470`, without `/api/v1`."""
    token: str | None
    """Bearer token; None without one."""


DEFAULT_PROFILE = "default"
MAX_PROFILE_NAME = 80
_chosen: str | None = None


def choose_profile(name: str | None) -> None:
    """Select a profile for this process; the choice overrides TRAINYARD_URL and TRAINYARD_PROFILE.

    Raises:
        NotConfiguredError: the name cannot be the name of a file.
    """
    global _chosen
    _chosen = None if name is None else _checked(name)


def profile() -> str:
    """Return the name of the profile that `login` and `up` write and other commands read.

    Raises:
        NotConfiguredError: TRAINYARD_PROFILE cannot be the name of a file.
    """
    return _chosen or _checked(os.environ.get("TRAINYARD_PROFILE") or DEFAULT_PROFILE)


def _checked(name: str) -> str:
    if not re.fullmatch(NAME, name) or len(name) > MAX_PROFILE_NAME:
        raise NotConfiguredError(
            f"profile={name!r}: a name is {LEGAL[NAME]}, {MAX_PROFILE_NAME} characters at most"
        )
    return name


def config_path() -> Path:
    """Return the path of the profile's file, with the server's address and the user's token."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "trainyard"
    name = profile()
    return folder / ("config.json" if name == DEFAULT_PROFILE else f"profiles/{name}.json")


def resolve(url: str | None = None, token: str | None = None) -> Connection:
    """Return the connection to use.

    The order of preference is: the arguments, the profile selected in this process, TRAINYARD_URL
    and TRAINYARD_TOKEN, the profile that TRAINYARD_PROFILE names, and the default profile. The
    token of a profile is sent only to the profile's server.

    Raises:
        NotConfiguredError: no address is known.
    """
    saved = load()
    if _chosen is None:
        url = url or os.environ.get("TRAINYARD_URL")
        token = token or os.environ.get("TRAINYARD_TOKEN")
    url = url or (saved.url if saved else None)
    if not url:
        raise NotConfiguredError(_nothing_known())
    url = url.rstrip("/")
    if not token and saved and saved.url == url:
        token = saved.token
    return Connection(url, token or None)


def _nothing_known() -> str:
    name = profile()
    if name == DEFAULT_PROFILE:
        return (
            "No server is known. Start one here with `trainyard up`, log in to one with "
            "`trainyard login URL`, or set TRAINYARD_URL and TRAINYARD_TOKEN."
        )
    known = sorted(path.stem for path in config_path().parent.glob("*.json"))
    return (
        f"There is no profile {name!r} (known: {', '.join([DEFAULT_PROFILE, *known])}). "
        f"Create it with `trainyard login URL --profile {name}`."
    )


def load() -> Connection | None:
    """Return the connection in the profile's file; None if the file is missing or unreadable."""
    try:
        content = json.loads(config_path().read_text(encoding="utf-8"))
        return Connection(str(content["url"]), content.get("token"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(connection: Connection) -> Path:
    """Write the profile's file, which only the user can read; return its path."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = json.dumps({"url": connection.url, "token": connection.token}, indent=2)
    replace_file(path, content + "\n", mode=0o600)
    return path
