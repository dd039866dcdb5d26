"""Reads logs of ranks by line number, and searches them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, func, select

from server.core.context import Context
from server.core.database.metric_and_log_tables import log_blocks, logs
from server.core.database.tables import attempts
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.telemetry.logs.blocks import unpack_lines
from server.telemetry.logs.store import RankLog
from trainyard.outside.terminal_rows import last_rows
from trainyard.protocol.rest.metrics_and_logs import LogLine, LogMatches, LogPage

MAX_LINES = 5000
"""Maximum number of lines in one page, and of matches in one search."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Maximum size of the text in one page or search, in characters, unless a single line is longer; a
page of long lines has fewer lines."""
PAGE_BLOCKS = 64
"""Maximum number of blocks that one page unpacks; they contain at least 4 MiB of text."""
SEARCHED_BLOCKS = 128
"""Maximum number of blocks that one search unpacks; they contain at least 8 MiB of text. The
response gives the line to continue at.
"""


def page(
    context: Context,
    job_id: str,
    *,
    scope: Scope,
    attempt: int | None = None,
    rank: int = 0,
    from_line: int | None = None,
    limit: int = 500,
) -> LogPage:
    """Return up to `limit` lines of a rank's log, by default from the newest attempt.

    The page starts at line `from_line`, or at the oldest stored line if that is later; a negative
    `from_line` counts from the end of the log. By default, the page has the last lines. The page
    has fewer than `limit` lines if `limit` lines exceed `MAX_PAGE_BYTES` or `PAGE_BLOCKS`.

    Raises:
        NotFoundError: no such job or attempt exists.
        InvalidRequestError: the rank has no log, but other ranks of the attempt have logs.
    """
    with context.database.read() as connection:
        attempt_id, number = _attempt(connection, job_id, attempt, scope=scope)
        query = RankLog.select().where(logs.c.attempt_id == attempt_id).order_by(logs.c.rank)
        known = {row.rank: row for row in RankLog.all(connection, query)}
        if known and rank not in known:
            listed = ", ".join(map(str, list(known)[:20]))
            detail = f"rank {rank} has no log; these have: {listed}"
            raise InvalidRequestError.at("query/rank", detail)
        row = known.get(rank)
        total = row.lines if row else 0
        mine = (log_blocks.c.attempt_id == attempt_id) & (log_blocks.c.rank == rank)
        stored = connection.scalar(select(func.min(log_blocks.c.first_line)).where(mine))
        first = total if stored is None else stored
        start = -limit if from_line is None else from_line
        backwards = start < 0
        start = max(start + total if backwards else start, first)
        lines = _lines(connection, mine, start=start, end=start + limit, backwards=backwards)
    open_lines = last_rows((row and row.partial) or b"")
    return LogPage(
        attempt=number,
        rank=rank,
        ranks=list(known),
        lines=lines,
        first_line=first,
        total_lines=total,
        first_error_line=row.first_error_line if row else None,
        dropped_bytes=row.dropped_bytes if row else 0,
        open_line=open_lines[-1] if open_lines else None,
    )


def search(
    context: Context,
    job_id: str,
    text: str,
    *,
    scope: Scope,
    attempt: int | None = None,
    rank: int = 0,
    from_line: int = 0,
    limit: int = 200,
) -> LogMatches:
    """Return up to `limit` lines that contain `text`, ignoring case, from line `from_line` on.

    One call searches at most `SEARCHED_BLOCKS` blocks and returns at most `MAX_PAGE_BYTES`; the
    next call continues at `next_line`.

    Raises:
        NotFoundError: no such job or attempt exists.
    """
    with context.database.read() as connection:
        attempt_id, number = _attempt(connection, job_id, attempt, scope=scope)
        columns = log_blocks.c
        query = select(columns.first_line, columns.lines, columns.content).where(
            columns.attempt_id == attempt_id,
            columns.rank == rank,
            columns.first_line + columns.lines > from_line,
        )
        blocks = query.order_by(columns.first_line).limit(SEARCHED_BLOCKS)
        rows = connection.execute(blocks).all()
    stored = [(row.first_line, row.content) for row in rows]
    found, next_line = _matches(stored, text.lower(), from_line=from_line, limit=limit)
    if next_line is None and len(rows) == SEARCHED_BLOCKS:
        next_line = rows[-1].first_line + rows[-1].lines
    return LogMatches(attempt=number, rank=rank, lines=found, next_line=next_line)


def _attempt(
    connection: Connection, job_id: str, number: int | None, *, scope: Scope
) -> tuple[str, int]:
    check_job(connection, job_id, scope=scope)
    query = select(attempts.c.id, attempts.c.number).where(attempts.c.job_id == job_id)
    if number is not None:
        query = query.where(attempts.c.number == number)
    row = connection.execute(query.order_by(attempts.c.number.desc()).limit(1)).one_or_none()
    if row is not None:
        return row.id, row.number
    raise NotFoundError(f"job {job_id} has no attempt {number or 'yet'}")


def _lines(
    connection: Connection, mine: ColumnElement[bool], *, start: int, end: int, backwards: bool
) -> list[LogLine]:
    """Return the lines of `start..end - 1` that fit in a page, from the end if `backwards`."""
    columns = log_blocks.c
    order = columns.first_line.desc() if backwards else columns.first_line
    overlap = mine & (columns.first_line < end) & (columns.first_line + columns.lines > start)
    query = select(columns.first_line, columns.content).where(overlap).order_by(order)
    found: list[LogLine] = []
    room = MAX_PAGE_BYTES
    for first_line, content in connection.execute(query.limit(PAGE_BLOCKS)).all():
        lines = [
            LogLine(number=number, text=text)
            for number, text in enumerate(unpack_lines(content), start=first_line)
            if start <= number < end
        ]
        for line in reversed(lines) if backwards else lines:
            room -= len(line.text)
            if room < 0 and found:
                return found[::-1] if backwards else found
            found.append(line)
    return found[::-1] if backwards else found


def _matches(
    blocks: Sequence[tuple[int, bytes]], text: str, *, from_line: int, limit: int
) -> tuple[list[LogLine], int | None]:
    found: list[LogLine] = []
    room = MAX_PAGE_BYTES
    for first_line, content in blocks:
        for number, line in enumerate(unpack_lines(content), start=first_line):
            if number < from_line or text not in line.lower():
                continue
            room -= len(line)
            if len(found) == limit or (room < 0 and found):
                return found, number
            found.append(LogLine(number=number, text=line))
    return found, None
