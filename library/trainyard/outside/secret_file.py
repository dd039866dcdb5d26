"""Secrets in files, so that no environment, process list or container inspection shows them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, quote, urlsplit

from trainyard.base.redaction import MASK

SCHEMES = {
    "DATABASE": ("sqlite", "postgresql", "postgresql+psycopg"),
    "BROKER": ("redis", "rediss", "redis+socket"),
}
"""Legal URL schemes for `url_with_password`, by name."""


def read_secret(path: Path, variable: str, index: int = 0) -> str:
    """Return one line of a file of secrets.

    Args:
        path: path of the file.
        variable: name of the environment variable with the file's path, for errors.
        index: number of the line, from 0.

    Raises:
        ValueError: the file cannot be read, lacks the line, may be read by other users, or belongs
            to one.
    """
    where = f"{variable}={path}"
    try:
        with path.open(encoding="ascii") as file:
            found = os.fstat(file.fileno())
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{where} cannot be read: {error}") from None
    # A mounted secret belongs to root, and to a group that only this process has.
    mounted = found.st_uid == 0 and os.geteuid() != 0
    if found.st_mode & (0o037 if mounted else 0o077):
        mode = stat.S_IMODE(found.st_mode)
        legal = "440" if mounted else "600"  # the process cannot read root's file with mode 600
        raise ValueError(
            f"{where} has mode {mode:04o}, so that others may read it: chmod {legal} it"
        )
    if found.st_uid not in (0, os.geteuid()):
        raise ValueError(f"{where} belongs to user {found.st_uid}, not to this one or root")
    if index >= len(lines) or not lines[index].strip():
        raise ValueError(f"{where} has {len(lines)} lines, but line {index} (from 0) is needed")
    return lines[index].strip()


def url_with_password(url: str, file: Path | None, *, name: Literal["DATABASE", "BROKER"]) -> str:
    """Return a URL with the password from a file, such as `redis://redis:6379/0` for the broker.

    Args:
        url: a URL, which needs a host if there is a file; without a file it is returned unchanged.
        file: file with the password in the first line.
        name: name in `TRAINYARD_{name}_URL` and `TRAINYARD_{name}_PASSWORD_FILE`.

    Raises:
        ValueError: the URL has none of the `SCHEMES` or cannot be parsed, `read_secret` raises an
            error, or there is a file and the URL has a password or no host.
    """
    parts = _split(url, f"TRAINYARD_{name}_URL", SCHEMES[name])
    if file is None:
        return url
    variable = f"TRAINYARD_{name}_PASSWORD_FILE"
    user, _, place = parts.netloc.rpartition("@")
    if not place or ":" in user:
        fault = "a password of its own" if place else "no host"
        raise ValueError(
            f"TRAINYARD_{name}_URL={_masked(url)} has {fault}, and {variable} is set: "
            "legal with it is a URL such as scheme://user@host/path"
        )
    password = quote(read_secret(file, variable), safe="")
    return parts._replace(netloc=f"{user}:{password}@{place}").geturl()


def _split(url: str, variable: str, schemes: Sequence[str]) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        ValueError: the URL has none of the schemes, or its host or port cannot be parsed.
    """
    shown = f"{variable}={_masked(url)}"
    legal = ", ".join(f"{scheme}://" for scheme in schemes)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        # If a password has a slash, the error would show the text before the slash as the port.
        is_cut = "@" in url and "@" not in url.partition("://")[2].partition("/")[0]
        why = "a slash in its password is written %2F" if is_cut else error
        raise ValueError(f"{shown} cannot be read: {why}") from None
    if parts.scheme not in schemes or not url.startswith(f"{parts.scheme}://"):
        raise ValueError(f"{shown} is not legal: a URL begins with one of {legal}")
    return parts


def _masked(url: str) -> str:
    """Return a URL with masked credentials, even if the password has illegal characters."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{MASK}@{rest.rpartition('@')[2]}" if "@" in rest else url
