"""`up`, `down` and `login`: the control plane on this machine, or a connection to another."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from trainyard.base.loopback import is_loopback
from trainyard.cli.output import write_text
from trainyard.client import settings
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.client.settings import Connection, resolve, save

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of all its data; ~/.local/share/trainyard."),
]


Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Keep address and token under this name."),
]


def up(
    data: Data = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port of API and dashboard, or the next free one.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, help="Slots that this machine offers.")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the dashboard in a browser.")
    ] = False,
    profile: Profile = None,
) -> None:
    """Start the whole control plane here: broker, server, scheduler and one worker."""
    if profile is not None:
        settings.choose_profile(profile)
    kept = settings.profile()
    given = _given(
        {"--data": data, "--port": port, "--host": host, "--slots": slots, "--profile": kept}
    )
    _embedded("up", *given, *(["--open"] if browser else []))


def down(
    data: Data = None,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Leave jobs training; `up` adopts them again.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds for jobs to save; 600.")
    ] = None,
) -> None:
    """End the control plane here: running jobs save a checkpoint and stop first."""
    given = _given({"--data": data, "--timeout": timeout})
    _embedded("down", *given, *(["--keep-running"] if keep_running else []))


def _given(options: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items() if value is not None]


def _embedded(*arguments: str) -> None:
    """Replace this process by `python -m embedded`, without importing it."""
    if importlib.util.find_spec("embedded") is None or importlib.util.find_spec("fastapi") is None:
        raise UsageError(
            "the control plane is not installed here",
            remedy="Install it with `pip install 'trainyard-programs[embedded]'`.",
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "embedded", *arguments])


def login(
    url: Annotated[str, typer.Argument(help="Such as https://trainyard.example.com.")],
    token: Annotated[
        str | None, typer.Option("--token", help="Asked for without it, and not shown.")
    ] = None,
    profile: Profile = None,
) -> None:
    """Check a token and store it, with the server's address, for the other commands."""
    if profile is not None:
        settings.choose_profile(profile)
    if "?" in url:
        raise UsageError(
            "this link logs a browser in, once",
            remedy="Give the server's address alone, and a token: the page Tokens makes one. On "
            "the machine of `trainyard up` no login is needed.",
        )
    if "://" not in url:
        url = f"{_guessed_scheme(url)}://{url}"
    given = token or os.environ.get("TRAINYARD_TOKEN")
    if not given:
        given = typer.prompt("Token", hide_input=True, err=True).strip()
    connection = Connection(resolve(url, given).url, given)
    with Client(connection.url, connection.token) as yard:
        session = yard.session()
    path = save(connection)
    write_text(f"Logged in to {connection.url} as {session.name}; kept in {path}.")


def _guessed_scheme(address: str) -> str:
    """Return the scheme of an address without one: only a loopback address is served plainly."""
    return "http" if is_loopback(urlsplit(f"//{address}").hostname or "") else "https"
