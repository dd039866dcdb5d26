"""`python -m server audit`: checks, signs or exports the audit log."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from server.app.keys import ensure_key
from server.core.audit.export_lines import export
from server.core.audit.request_rows import append_rows, command_row
from server.core.audit.signed_digests import sign_chain
from server.core.audit.verification import Known, export_problems, known_digests, verify
from server.core.context import Context
from server.core.secrets import KeyFileError
from trainyard.protocol.audit_log.views import AuditOutcome

logger = logging.getLogger(__name__)


def begin_audit_log(context: Context) -> None:
    """Sign the ends of the new, empty chain; without a usable key file, log how to do it later."""
    error = ensure_key(context)
    try:
        with context.database.write() as connection:
            sign_chain(context, connection)
    except KeyFileError:
        logger.error("the audit log is not signed: %s; run `python -m server audit sign`", error)


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the `audit` command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="verify|sign|export")
    words = "Check the chain; exit with 1 if it is not intact, and with 3 if only an export failed."
    check = actions.add_parser("verify", help=words, description=words)
    check.add_argument(
        "--anchors",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="compare with an exported file; may be repeated",
    )
    words = "Sign the chain as it is: after a lost key file, or once a finding is investigated."
    actions.add_parser("sign", help=words, description=words)
    words = "Write the rows and anchors as JSON lines."
    lines = actions.add_parser("export", help=words, description=words)
    lines.add_argument("--after", type=int, default=0, metavar="SEQ", help="only later rows")


def audit_command(context: Context, given: argparse.Namespace) -> int:
    """Run an action of `audit`, and return the exit status."""
    return ACTIONS[given.action](context, given)


def _export(context: Context, given: argparse.Namespace) -> int:
    row = command_row(context, "audit_exported", outcome=AuditOutcome.READ, object="audit")
    with context.database.write() as connection:
        append_rows(connection, [row])
    for lines in export(context, given.after):
        sys.stdout.buffer.write(lines)
    sys.stdout.flush()
    return 0


def _sign(context: Context, _given: argparse.Namespace) -> int:
    try:
        with context.database.write() as connection:
            is_done = sign_chain(context, connection)
            if is_done:
                append_rows(connection, [command_row(context, "audit_signed", object="audit")])
    except KeyFileError as error:
        sys.stderr.write(f"{error.detail}\n")
        return 1
    sys.stdout.write("the chain is signed\n" if is_done else "the chain was signed already\n")
    return 0


def _verify(context: Context, given: argparse.Namespace) -> int:
    try:
        check = verify(context, _known(given.anchors))
        exports = export_problems(context)
    except OSError as error:
        sys.stderr.write(f"{error.filename}: {error.strerror}\n")
        return 2
    except SQLAlchemyError as error:
        sys.stdout.write(f"the log cannot be read: {error}\n")
        return 1
    for problem in (*check.problems, *exports):
        sys.stdout.write(f"{problem}\n")
    if check.unread:
        sys.stdout.write(f"{check.unread} lines of the export are no rows\n")
    words = f"{check.rows:,} rows ({check.first} to {check.last})"
    compared = f", {check.compared:,} of them compared with an export" if given.anchors else ""
    result = "are not intact" if check.problems else "are intact"
    sys.stdout.write(f"{words}{compared} {result}\n")
    return 1 if check.problems else 3 if exports else 0


def _known(files: list[Path]) -> Iterator[Known | None]:
    for file in files:
        with file.open("rb") as lines:
            yield from known_digests(lines)


ACTIONS: Mapping[str, Callable[[Context, argparse.Namespace], int]] = {
    "verify": _verify,
    "sign": _sign,
    "export": _export,
}
