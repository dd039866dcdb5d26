"""`python -m server admin-token`: replaces the admin token, lists tokens that the old one made."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TextIO

from server.api.auth.admin import (
    OF_MACHINES,
    AdminRotation,
    replace_admin_token,
    revoke_made,
    unknown_machines,
)
from server.core.context import Context
from server.core.database.rows import Token


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the `admin-token` command."""
    parser.add_argument(
        "--revoke-tokens",
        nargs="?",
        const="made",
        choices=("made", "all"),
        help="after a confirmation, revoke the API and join tokens that the former admin token "
        "made; `all`: also those of earlier admin tokens",
    )
    for kind in OF_MACHINES:
        parser.add_argument(
            f"--{kind}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"with --revoke-tokens: also revoke the token of this {kind}; may be repeated",
        )
    parser.add_argument("--yes", action="store_true", help="skip the confirmation")


def rotate_admin_token(
    context: Context, given: argparse.Namespace, *, answers: TextIO | None = None
) -> int:
    """Replace the admin token; print only the new token on standard output.

    The confirmation is read from `answers`, or from standard input.
    """
    answers = answers or sys.stdin
    if (problem := _problem(context, given, answers)) is not None:
        sys.stderr.write(f"{problem}\n")
        return 2
    rotation = replace_admin_token(context)
    sys.stdout.write(rotation.token + "\n")
    sys.stdout.flush()
    sys.stderr.write(f"{_ended(rotation)}\n{_left(rotation)}")
    if given.revoke_tokens is None:
        return 0
    scope: Sequence[Token] = rotation.made
    if given.revoke_tokens == "all":
        scope = [*rotation.earlier, *rotation.made]
    if not given.yes:
        count = sum(row.kind not in OF_MACHINES for row in scope)
        count += len(given.node) + len(given.source)
        sys.stderr.write(f"Revoke {count} of these tokens? [y/N] ")
        sys.stderr.flush()
        if answers.readline().strip().lower() not in {"y", "yes"}:
            sys.stderr.write("No token was revoked.\n")
            return 1
    for row in revoke_made(context, scope, nodes=given.node, sources=given.source):
        sys.stderr.write(f"revoked: {_line(row)}\n")
    return 0


def _problem(context: Context, given: argparse.Namespace, answers: TextIO) -> str | None:
    """Return why the options are invalid, or None; called before any change."""
    if given.revoke_tokens is None and (given.node or given.source or given.yes):
        return "--node, --source and --yes need --revoke-tokens"
    if given.revoke_tokens is not None and not given.yes and not answers.isatty():
        return (
            "--revoke-tokens needs a terminal for the confirmation, or --yes; nothing was changed"
        )
    if unknown := unknown_machines(context, nodes=given.node, sources=given.source):
        return (
            f"{', '.join(unknown)} has no valid token; `trainyard nodes` lists the nodes. Nothing "
            "was changed"
        )
    return None


def _ended(rotation: AdminRotation) -> str:
    return (
        f"The former admin token has ended, and with it {rotation.sessions} browser sessions, "
        f"{rotation.codes} login codes, {rotation.invitations} invitations and "
        f"{rotation.commands} commands in running attempts."
        + "".join(f"\nended, as it could create access: {_line(row)}" for row in rotation.makers)
    )


def _left(rotation: AdminRotation) -> str:
    """Return the tokens and requests that the replacement has left valid, one per line."""
    lines: list[str] = []
    for title, some in (
        ("Made since the former admin token, and still valid:", rotation.made),
        ("Of earlier admin tokens:", rotation.earlier),
    ):
        if some:
            lines += [title, *(f"  {_line(row)}" for row in some)]
    if rotation.invited:
        lines.append(
            "Users who were invited or got a new password since then: "
            f"{', '.join(rotation.invited)}"
        )
    if rotation.admins:
        lines.append(f"Users with the role admin, who may log in: {', '.join(rotation.admins)}")
    if rotation.requests:
        lines.append(f"Open requests for nodes by people: {', '.join(rotation.requests)}")
    if rotation.made:
        lines.append(
            "--revoke-tokens revokes the API and join tokens; add --node NAME and --source NAME "
            "for those of machines."
        )
    return "".join(f"{line}\n" for line in lines)


def _line(row: Token) -> str:
    used = "never used" if row.last_used_at is None else f"used {row.last_used_at:%Y-%m-%d %H:%M}"
    made = f"made {row.created_at:%Y-%m-%d %H:%M} UTC"
    scopes = "" if row.scopes is None else f", {' '.join(row.scopes)}"
    return f"{row.kind:<7} {row.name}  {row.id}  {made}, {used}{scopes}"
