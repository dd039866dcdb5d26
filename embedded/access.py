"""Access to an embedded control plane: the user's token, and one-time login links."""

from __future__ import annotations

import getpass
import os
import re

import httpx

from embedded.folders import Folders
from trainyard.client.errors import UnauthenticatedError
from trainyard.client.sdk import Client
from trainyard.client.settings import Connection, choose_profile, save
from trainyard.client.transport import unreachable
from trainyard.outside.http_client import answers_with_success
from trainyard.run.atomic import replace_file


def let_user_in(folders: Folders, admin: Client, *, profile: str | None) -> str:
    """Create a token for the user of the `trainyard` command; return the name of the user.

    The token is stored in the data folder and reused while it is valid; a new token revokes older
    ones of the same name. Token and server address are also stored in the given profile.
    """
    token = _saved_token(folders)
    if token is None or not _opens(admin.url, token):
        token = _new_token(folders, admin)
    if profile is not None:
        choose_profile(profile)
        save(Connection(admin.url, token))
    return _user_name()


def login_link(admin: Client) -> str | None:
    """Return a one-time login link for a browser; None if the server serves no dashboard.

    Raises:
        ConnectionFailedError: the server does not respond.
    """
    try:
        if not answers_with_success(admin.url, seconds=5):
            return None
    except httpx.TransportError as error:
        raise unreachable(admin.url, error) from error
    code = admin.create_token("login-link", kind="login")
    return f"{admin.url}/login?code={code.secret}"


def _saved_token(folders: Folders) -> str | None:
    try:
        return folders.user_token.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _opens(url: str, token: str) -> bool:
    with Client(url, token) as yard:
        try:
            yard.session()
        except UnauthenticatedError:
            return False
    return True


def _new_token(folders: Folders, admin: Client) -> str:
    name = _user_name()
    for token in admin.tokens():
        if token.kind == "api" and token.name == name:  # the secret of this token is lost
            admin.revoke_token(token.id)
    secret = admin.create_token(name, kind="api").secret
    assert secret is not None, "a new token comes with its secret"
    replace_file(folders.user_token, secret + "\n", mode=0o600)
    return secret


def _user_name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id of a container may have no name
        user = str(os.getuid())
    return f"cli-{re.sub(r'[^A-Za-z0-9._-]', '-', user)}"[:80]
