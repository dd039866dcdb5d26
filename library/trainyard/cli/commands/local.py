"""`up`, `down` and `login`: the control plane on this machine, or a connection to a server."""

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
    typer.Option("--profile", metavar="NAME", help="Store address and token under this name."),
]


def up(context: typer.Context) -> None:
    """Start the whole control plane here: broker, server, scheduler and one worker."""
    _embedded("up", f"--profile={settings.profile()}", *context.args)


def down(context: typer.Context) -> None:
    """Stop the control plane on this machine, after running jobs have saved a checkpoint."""
    _embedded("down", *context.args)


def require_embedded() -> None:
    """Check that this environment has the programs of a control plane.

    Raises:
        UsageError: it has only the library.
    """
    if importlib.util.find_spec("embedded") is None or importlib.util.find_spec("fastapi") is None:
        raise UsageError(
            "the control plane is not installed here",
            remedy="Install trainyard-programs[embedded] into this environment (docs/install.md).",
        )


def _embedded(*arguments: str) -> None:
    """Replace this process with `python -m embedded`, without importing `embedded`."""
    require_embedded()
    sys.stdout.flush()
    # -P: a module of the folder in which the command was typed must not take the place of ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "embedded", *arguments])


def login(
    url: Annotated[
        str, typer.Argument(help="Address of the server, such as https://trainyard.example.com.")
    ],
    token: Annotated[
        str | None, typer.Option("--token", help="Access token. Default: a hidden prompt.")
    ] = None,
    profile: Profile = None,
) -> None:
    """Check a token, and store it with the server's address for the other commands."""
    if profile is not None:
        settings.choose_profile(profile)
    if "?" in url:
        raise UsageError(
            "this link logs a browser in, once",
            remedy="Give only the server's address, and a token from the page Tokens. On the "
            "machine of `trainyard up`, no login is needed.",
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
    """Return the scheme for an address without a scheme: `http` for loopback, else `https`."""
    return "http" if is_loopback(urlsplit(f"//{address}").hostname or "") else "https"
