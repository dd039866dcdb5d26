"""`up`, `down` and `login`: the control plane on this machine, or a connection to a server."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlsplit

import typer

from trainyard.base.loopback import is_loopback
from trainyard.base.names import default_node_name, login_token_name
from trainyard.cli.output import write_text
from trainyard.client import settings
from trainyard.client.errors import ApiError, ConnectionFailedError, NotFoundError, UsageError
from trainyard.client.sdk import Client
from trainyard.client.settings import Connection, resolve, save
from trainyard.protocol.rest.access import SessionView
from trainyard.protocol.user_accounts.views import BUILT_IN_USER

MAX_LOGIN_HOST = 100
"""Maximum length of the name of this machine in a login by a code, in characters."""
PASSING = (429, 502, 503, 504)
"""Statuses of failures that pass: the login goes on."""

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
        str | None,
        typer.Argument(
            help="Address of the server, such as https://trainyard.example.com. Default: that of "
            "the profile."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Access token. Default: TRAINYARD_TOKEN, else piped."),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="Log in as this user with a password, which is read from a hidden prompt.",
        ),
    ] = None,
    profile: Profile = None,
) -> None:
    """Log in to a server, and store its address and a token for the other commands.

    On a terminal, the command prints a link and a code: open the link in any browser, log in
    there, and approve the code. The token is valid for 30 days. With --user, the token is a new
    one of this user, valid for a year.
    """
    if user is not None and token is not None:
        raise UsageError("--user and --token exclude each other", remedy="Give one of them.")
    address = _address(url)
    if profile is not None:
        settings.choose_profile(profile)
    if user is not None:
        given = _token_of(address, user)
    else:
        given = token or os.environ.get("TRAINYARD_TOKEN") or ""
    if not given:
        given = _device_token(address) if _is_terminal() else _token_of_input()
    connection = Connection(resolve(address, given).url, given)
    with Client(connection.url, connection.token) as yard:
        session = yard.session()
    path = save(connection)
    write_text(f"Logged in to {connection.url} as {_who(session)}; kept in {path}.")


def _who(session: SessionView) -> str:
    user = session.user
    return session.name if user is None or user.name == BUILT_IN_USER else user.name


def _token_of(address: str, user: str) -> str:
    """Return a new token of a user, whose password is read from a hidden prompt."""
    password = typer.prompt("Password", hide_input=True, err=True)
    token_name = login_token_name(socket.gethostname(), datetime.now(UTC))
    with Client(address) as yard:
        made = yard.password_token(user, password, token_name=token_name)
    return made.secret or ""


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _token_of_input() -> str:
    """Return the token that a program writes to the standard input."""
    return str(typer.prompt("Token", hide_input=True, err=True)).strip()


def _device_token(address: str) -> str:
    """Return a token that a person approves in a browser, maybe on another machine.

    Raises:
        UsageError: the person denied the login, or did not approve it in time.
    """
    with Client(address) as yard:
        try:
            host = default_node_name(socket.gethostname())[:MAX_LOGIN_HOST]
            begun = yard.begin_device_login(host)
        except NotFoundError:  # a server of an earlier release
            return _token_of_input()
        typer.echo(f"Open {begun.verification_uri_complete}\nand approve the code", err=True)
        typer.echo(f"\n    {begun.user_code}\n", err=True)
        until, pause = time.monotonic() + begun.expires_in, float(begun.interval)
        while time.monotonic() < until:
            time.sleep(pause)
            try:
                return yard.device_token(begun.device_code).secret or ""
            except ConnectionFailedError:
                continue  # the server starts again, or the network is away for a moment
            except ApiError as error:
                code = error.problem.type.rpartition("/")[2]
                if code == "slow_down":
                    pause += begun.interval
                elif code == "access_denied":
                    raise UsageError("the login was denied in the browser") from None
                elif code != "authorization_pending" and error.status not in PASSING:
                    raise
    raise UsageError("the login was not approved in time", remedy="Run `trainyard login` again.")


def _address(url: str | None) -> str:
    """Return the address of a server with its scheme; by default that of the profile.

    Raises:
        UsageError: the address is a login link.
        NotConfiguredError: no address is given or known.
    """
    if url is None:
        return resolve().url
    if "?" in url:
        raise UsageError(
            "this link logs a browser in, once",
            remedy="Give only the server's address, and a token from the page Tokens. On the "
            "machine of `trainyard up`, no login is needed.",
        )
    if "://" not in url:
        url = f"{_guessed_scheme(url)}://{url}"
    return url


def _guessed_scheme(address: str) -> str:
    """Return the scheme for an address without a scheme: `http` for loopback, else `https`."""
    return "http" if is_loopback(urlsplit(f"//{address}").hostname or "") else "https"
