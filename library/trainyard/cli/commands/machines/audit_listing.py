"""`audit`: who changed what, and who was refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import islice, takewhile
from time import sleep
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.options import Json, Limit
from trainyard.cli.output import emit, write_text
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.protocol.audit_log.views import AuditOutcome, AuditRow

POLL_SECONDS = 2.0


def audit(
    user: Annotated[str | None, typer.Option("--user", help="Only this user.")] = None,
    token: Annotated[str | None, typer.Option("--token", help="Only the token of this id.")] = None,
    operation: Annotated[
        str | None, typer.Option("--operation", help="Only this operation, such as members_put.")
    ] = None,
    object_: Annotated[
        str | None,
        typer.Option("--object", help="Only this object and all below, such as projects/vision."),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project.")] = None,
    outcome: Annotated[
        AuditOutcome | None, typer.Option("--outcome", help="Only these outcomes.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="First time, such as 2026-11-30 or with T12:00.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Time before which the rows are.")
    ] = None,
    limit: Limit = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new rows until Ctrl-C.")
    ] = False,
    json: Json = False,
) -> None:
    """Show who changed what, and which attempts were refused; needs `audit:read`.

    With --follow, each row is one line, the oldest first.
    """
    query: dict[str, Any] = {
        "user": user,
        "token": token,
        "operation": operation,
        "object": object_,
        "project": project,
        "outcome": outcome,
        "since": _time("--since", since),
        "until": _time("--until", until),
    }
    with Client() as yard:
        if not follow:
            emit(list(islice(yard.audit(**query), limit)), draw_audit, as_json=json)
            return
        for row in _following(yard, query, limit):
            write_text(row.model_dump_json(exclude_none=True) if json else _line(row))


def _following(yard: Client, query: dict[str, Any], limit: int) -> Iterator[AuditRow]:
    newest = list(islice(yard.audit(**query), limit))
    last = max((row.seq for row in newest), default=0)
    while True:
        yield from reversed(newest)
        sleep(POLL_SECONDS)
        is_new = partial(_is_after, last)
        newest = list(takewhile(is_new, yard.audit(**query)))
        last = max((row.seq for row in newest), default=last)


def _is_after(last: int, row: AuditRow) -> bool:
    return row.seq > last


def _time(option: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError(
            f"{option} {text} is no time.", remedy=f"Write {option} 2026-11-30 or 2026-11-30T12:00."
        ) from None


def draw_audit(rows: Sequence[AuditRow]) -> RenderableType:
    """Return the table of rows."""
    if not rows:
        return Text("No row matches.")
    table = Listing("SEQ", "AT", "WHO", "DID", "ON", "CHANGE",
                    right=("SEQ",), spare=("SEQ",), elastic="CHANGE")  # fmt: skip
    for row in rows:
        table.add(
            str(row.seq),
            formats.date(row.at),
            _who(row),
            Text(_did(row), style="red" if row.outcome is AuditOutcome.REFUSED else ""),
            row.object or formats.DASH,
            Text(_change(row), style="dim"),
        )
    return table


def _line(row: AuditRow) -> str:
    parts = [f"{row.at:%Y-%m-%d %H:%M:%S}Z", _who(row), _did(row), row.object or "", _change(row)]
    return "  ".join(part for part in parts if part)


def _who(row: AuditRow) -> str:
    who = row.user or row.token or row.address or formats.DASH
    by = f" ({row.token})" if row.user and row.token and row.token != row.user else ""
    return f"{who}{by}{' BREAK-GLASS' if row.break_glass else ''}"


def _did(row: AuditRow) -> str:
    status = f" {row.status}" if row.status else ""
    count = f" x{row.count}" if row.count else ""
    return f"{row.operation} {row.outcome}{status}{count}"


def _change(row: AuditRow) -> str:
    before, after = row.before or {}, row.after or {}
    parts = []
    for name in [*before, *(each for each in after if each not in before)]:
        old, new = _value(before.get(name)), _value(after.get(name))
        if name not in after or name not in before:
            parts.append(f"{name}={old if name in before else new}")
        elif old != new:
            parts.append(f"{name}: {old} -> {new}")
    return ", ".join(parts)


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
