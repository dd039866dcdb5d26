"""`secrets`: the secrets of a project, or your own."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.options import Json
from trainyard.cli.output import emit, note
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.protocol.user_accounts.secret_views import MAX_SECRET_BYTES, SecretView

UTF_8 = codecs.getincrementaldecoder("utf-8")
READ_BYTES = MAX_SECRET_BYTES + 6
"""Number of bytes read of a value: too many even without a line break and a cut character."""


def secrets(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list|set NAME|remove NAME",
            help="Store a new version, or delete a secret. Default: list the secrets.",
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project", metavar="NAME", help="Name of the project. Default: your own secrets."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List secrets with their versions, without values; set or remove one.

    `set` reads the value from standard input, or prompts for it on a terminal. A line break at the
    end of the input is not part of the value. No command shows a value.
    """
    words = given or ["list"]
    with Client() as yard:
        match words:
            case ["list"]:
                shown = list(yard.secrets(project))
            case ["set", name]:
                stored = yard.set_secret(name, _value(), project=project)
                if stored.warning is not None:
                    note(stored.warning)
                shown = [stored]
            case ["remove", name]:
                yard.delete_secret(name, project=project)
                shown = list(yard.secrets(project))
            case ["set", _, _]:
                raise UsageError(
                    "A value among the arguments is visible to other users of the machine.",
                    remedy="Write the value to the standard input: "
                    "`trainyard secrets set NAME < FILE`.",
                )
            case _:
                raise UsageError(
                    f"`secrets {words[0]}` is not such a command.",
                    remedy="Write `trainyard secrets`, `trainyard secrets set NAME` or `trainyard "
                    "secrets remove NAME`.",
                )
    emit(shown, draw_secrets, as_json=json)


def draw_secrets(shown: Sequence[SecretView]) -> RenderableType:
    """Return the table of secrets."""
    if not shown:
        return Text("No secrets.")
    rows = Listing("NAME", "VERSION", "CHANGED", "BY")
    for secret in shown:
        changed = formats.date(secret.changed_at)
        rows.add(secret.name, str(secret.version), changed, secret.changed_by)
    return rows


def _value() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True, err=True))
    content = sys.stdin.buffer.read(READ_BYTES)
    try:
        # A longer input may be cut within a character; the server refuses it as too long.
        text = UTF_8().decode(content, final=len(content) < READ_BYTES)
    except UnicodeDecodeError:
        raise UsageError(
            "The standard input is not UTF-8.", remedy="Encode it as text, for example in base64."
        ) from None
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")
