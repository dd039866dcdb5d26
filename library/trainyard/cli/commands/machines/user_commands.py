"""`users` and `whoami`: the users of a server, and the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.options import Json
from trainyard.cli.output import emit
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.access import SessionView
from trainyard.protocol.user_accounts.views import ClusterRole, InvitationView, UserView

STATES = {"disable": "disabled", "enable": "active"}
"""State of a user after each of these verbs."""


def users(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list|invite NAME|reset NAME|role NAME ROLE|change NAME|disable NAME|"
            "enable NAME|unlink NAME",
            help="Create a user with an invitation, make another invitation, change a user, or "
            "remove the user's identity at the issuer. Default: list all users.",
        ),
    ] = None,
    email: Annotated[
        str | None, typer.Option("--email", help="With invite: e-mail address, for display.")
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", help="With invite: user, operator or admin.")
    ] = None,
    unix_account: Annotated[
        str | None,
        typer.Option(
            "--unix-account",
            help="With change: account under which nodes with TRAINYARD_RUN_AS=owner run the "
            "user's jobs; an empty value removes it.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List users with their roles; invite, change or disable one.

    An invitation is a link, printed once: the user sets a password with it. To disable a user ends
    all tokens and sessions of the user.
    """
    words = given or ["list"]
    _check_account_option(words, unix_account)
    with Client() as yard:
        match words:
            case ["invite", name]:
                made = yard.invite_user(
                    name, email=email, role=None if role is None else _role(role)
                )
                emit(made, draw_invitation, as_json=json)
                return
            case _ if email is not None or role is not None:
                raise UsageError(
                    "--email and --role are options of `invite`.",
                    remedy="Write `trainyard users role NAME ROLE` to change a role.",
                )
            case ["list"]:
                shown = list(yard.users())
            case ["reset", name]:
                emit(yard.reset_user(_id(yard, name)), draw_invitation, as_json=json)
                return
            case ["role", name, other]:
                shown = [yard.change_user(_id(yard, name), role=_role(other).value)]
            case ["change", name]:
                shown = [yard.change_user(_id(yard, name), unix_account=unix_account or None)]
            case ["disable" | "enable" as verb, name]:
                shown = [yard.change_user(_id(yard, name), state=STATES[verb])]
            case ["unlink", name]:
                yard.unlink_user(_id(yard, name))
                shown = [each for each in (yard.user_named(name),) if each is not None]
            case _:
                raise UsageError(
                    f"`users {' '.join(words)}` is not a command.",
                    remedy="Write `trainyard users`, `trainyard users invite NAME`, `trainyard "
                    "users role NAME operator` or `trainyard users disable NAME`.",
                )
    emit(shown, draw_users, as_json=json)


def _check_account_option(words: Sequence[str], unix_account: str | None) -> None:
    if (unix_account is not None) != (words[0] == "change"):
        raise UsageError(
            "`change` needs --unix-account, which is an option of no other command.",
            remedy="Write `trainyard users change NAME --unix-account ACCOUNT`.",
        )


def whoami(json: Json = False) -> None:
    """Show the user and the permissions of the token that the commands use."""
    with Client() as yard:
        session = yard.session()
    emit(session, draw_session, as_json=json)


def draw_users(shown: Sequence[UserView]) -> RenderableType:
    """Return the table of users."""
    rows = Listing("NAME", "ROLE", "STATE", "USED", "INVITED UNTIL", "ACCOUNT", "E-MAIL",
                   right=("USED",), spare=("INVITED UNTIL", "ACCOUNT", "E-MAIL"),
                   elastic="E-MAIL")  # fmt: skip
    for user in shown:
        rows.add(
            user.name,
            user.role,
            "ended" if user.has_ended else user.state,
            formats.age(user.last_used_at),
            formats.date(user.invited_until),
            user.unix_account or formats.DASH,
            Text(user.email or ""),
        )
    return rows


def draw_invitation(made: InvitationView) -> RenderableType:
    """Return an invitation; its link is on a line of its own."""
    words = (
        f"{made.user.name} sets a password with this link until {formats.date(made.expires_at)}:"
    )
    return Group(Text(words), Text(made.link))


def draw_session(session: SessionView) -> RenderableType:
    """Return user, token and permissions of the caller."""
    user = session.user
    who = session.name if user is None else f"{user.name} ({user.role})"
    token = "the session" if session.kind == "password" else f"the token {session.name!r}"
    return Group(
        Text(f"{who}, by {token}"),
        Text(" ".join(session.permissions) or "no permission"),
    )


def _role(role: str) -> ClusterRole:
    try:
        return ClusterRole(role)
    except ValueError:
        raise UsageError(
            f"role={role!r} is no role.", remedy=f"Legal: {', '.join(ClusterRole)}."
        ) from None


def _id(yard: Client, name: str) -> str:
    """Return the id of the user of this name."""
    found = yard.user_named(name)
    if found is None:
        raise UsageError(f"No user has the name {name!r}.", remedy="`trainyard users` lists them.")
    return found.id
