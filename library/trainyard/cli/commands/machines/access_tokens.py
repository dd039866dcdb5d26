"""`tokens`: tokens of people, programs and machines, with their scopes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, cast

import typer
from rich.console import RenderableType
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.options import Json
from trainyard.cli.output import emit, note
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.access import Permission, TokenView

KINDS = ("api", "join", "login")
Kind = Literal["api", "join", "login"]


def tokens(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="create NAME|revoke TOKEN",
            help="Create a token, or revoke one by its id or name. Default: list your tokens.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="api, join (a node or source) or login. Default: api."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="PERMISSION",
            help="A permission such as jobs:read. Repeatable. Default: all of an API token.",
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--days", help="Lifetime. Default: 365 for api; join and login: less."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List or revoke tokens of all users and machines, too.")
    ] = False,
    json: Json = False,
) -> None:
    """List your tokens with their scopes; create or revoke one.

    A new token is printed once, on stdout: the server stores only its hash.
    """
    verb, name = _parsed(given or [], has_options=bool(kind or scope or days is not None))
    with Client() as yard:
        if verb == "create":
            made = yard.create_token(
                name,
                kind=_kind(kind),
                expires_in_seconds=None if days is None else _seconds(days),
                scopes=None if scope is None else [_permission(each) for each in scope],
            )
            emit(made, _secret, as_json=json)
            return
        if verb == "revoke":
            yard.revoke_token(_token(yard, name, every=every).id)
            note(f"Revoked {name}.")
        shown = list(yard.tokens(every=every))
    emit(shown, draw_tokens, as_json=json)


def draw_tokens(shown: Sequence[TokenView]) -> RenderableType:
    """Return the table of tokens; it has users if the tokens are not all of one user."""
    has_users = len({token.user for token in shown}) > 1
    rows = Listing("ID", "NAME", *(("USER",) if has_users else ()), "KIND", "AGE", "USED", "ENDS",
                   "SCOPES", right=("AGE", "USED"), spare=("USED", "AGE", "ID"),
                   elastic="SCOPES")  # fmt: skip
    for token in shown:
        rows.add(
            token.id,
            token.name,
            *((token.user or formats.DASH,) if has_users else ()),
            token.kind,
            formats.age(token.created_at),
            formats.age(token.last_used_at),
            formats.date(token.expires_at),
            Text("all of its kind" if token.scopes is None else " ".join(token.scopes)),
        )
    return rows


def _secret(made: TokenView) -> RenderableType:
    return Text(made.secret or "")


def _parsed(given: list[str], *, has_options: bool) -> tuple[str | None, str]:
    match given:
        case [] if not has_options:
            return None, ""
        case ["create" as verb, name]:
            return verb, name
        case ["revoke" as verb, name] if not has_options:
            return verb, name
    raise UsageError(
        f"`tokens {' '.join(given)}` is not a command.",
        remedy="Write `trainyard tokens`, `trainyard tokens create NAME --scope jobs:read` or "
        "`trainyard tokens revoke TOKEN`.",
    )


def _seconds(days: float) -> int:
    if not 0 < days < 10_000:  # false for NaN, too
        raise UsageError(f"--days={days:g} is no lifetime.", remedy="Write a number such as 90.")
    return round(days * 86_400)


def _kind(kind: str | None) -> Kind:
    if kind is None:
        return "api"
    if kind not in KINDS:
        raise UsageError(f"--kind={kind!r} is no kind.", remedy=f"Write {' or '.join(KINDS)}.")
    return cast(Kind, kind)


def _permission(scope: str) -> Permission:
    try:
        return Permission(scope)
    except ValueError:
        raise UsageError(
            f"--scope={scope!r} is no permission.", remedy=f"Legal: {', '.join(Permission)}."
        ) from None


def _token(yard: Client, reference: str, *, every: bool) -> TokenView:
    """Return the token with this id, or the only valid token with this name."""
    listed, now = list(yard.tokens(every=every)), datetime.now(UTC)
    for each in listed:
        if each.id == reference:
            return each
    named = [each for each in listed if each.name == reference]
    valid = [each for each in named if each.expires_at is None or each.expires_at > now]
    found = valid or named
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            f"No token has the id or name {reference!r}.", remedy="`trainyard tokens` lists them."
        )
    raise UsageError(
        f"{len(found)} tokens have the name {reference!r}.",
        remedy=f"Name one by its id: {', '.join(each.id for each in found)}.",
    )
