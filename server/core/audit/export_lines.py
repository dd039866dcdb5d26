"""The audit log as JSON lines: each row, and each anchor after the last row of its segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, func, select

from server.core.audit.audit_tables import audit_anchors, audit_log
from server.core.audit.chain import rows_after
from server.core.context import Context

BATCH = 500
"""Number of rows that one read returns."""
OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE


@dataclass(frozen=True)
class ExportedRows:
    """The lines of some rows, and the numbers of the first and the last row."""

    lines: list[bytes]
    first: int
    last: int


def lines_after(connection: Connection, seq: int, *, limit: int) -> ExportedRows | None:
    """Return the lines of at most `limit` rows after `seq`; None if there is no row."""
    rows = rows_after(connection, seq, limit=limit)
    if not rows:
        return None
    first, last = int(rows[0]["seq"]), int(rows[-1]["seq"])
    within = (audit_anchors.c.seq > seq) & (audit_anchors.c.seq <= last)
    anchors = {
        int(row["seq"]): dict(row)
        for row in connection.execute(select(audit_anchors).where(within)).mappings()
    }
    lines: list[bytes] = []
    for row in rows:
        lines.append(_line(row))
        if row["seq"] in anchors:
            lines.append(_line({"anchor": _plain(anchors[row["seq"]])}))
    return ExportedRows(lines, first, last)


def export(context: Context, after: int) -> Iterator[bytes]:
    """Yield the lines of the rows after `after`, in batches, to the end of the chain at the start.

    Each batch is a short read, so that a slow reader holds no transaction.
    """
    with context.database.read() as connection:
        end = connection.scalar(select(func.max(audit_log.c.seq))) or 0
    while after < end:
        with context.database.read() as connection:
            found = lines_after(connection, after, limit=min(BATCH, end - after))
        if found is None:
            return
        yield b"".join(found.lines)
        after = found.last


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(_plain(value), option=OPTIONS)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without nulls; `str`, because SQLAlchemy's column names are no plain texts."""
    return {str(name): value for name, value in row.items() if value is not None}
