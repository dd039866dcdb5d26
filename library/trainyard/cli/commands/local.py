"""`up`, `down` and `login`: the control plane on this machine, or a connection to another."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated
from urllib.parse import urlsplit

import typer

from trainyard.base.loopback import is_loopback
from trainyard.cli.output import write_text
from trainyard.client import settings
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.client.settings import Connection, resolve, save

Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Keep address and token under this name."),
]


def up(context: typer.Context) -> None:
    """Start the whole control plane here: broker, server, scheduler and one worker."""
    _embedded("up", f"--profile={settings.profile()}", *context.args)


def down(context: typer.Context) -> None:
    """End the control plane here: running jobs save a checkpoint and stop first."""
    _embedded("down", *context.args)


def _embedded(*arguments: str) -> None:
    """Replace this process by `python -m embedded`, without importing it."""
    if importlib.util.find_spec("embedded") is None or importlib.util.find_spec("fastapi") is None:
        raise UsageError(
            "the control plane is not installed here",
            remedy="In Trainyard's checkout: `pip install ./library '.[embedded]'`.",
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
