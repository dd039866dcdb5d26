"""Reads logs of ranks by line number, and searches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import Connection, Table, func, select

from server.core.context import Context
from server.core.database.metric_and_log_tables import log_blocks, logs
from server.core.database.rows import TypedRow
from server.core.database.tables import attempts
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.lifecycle import check_job
from server.telemetry.logs.blocks import unpack_lines
from server.telemetry.logs.store import RankLog
from trainyard.outside.terminal_rows import last_rows
from trainyard.protocol.rest.metrics_and_logs import LogLine, LogMatches, LogPage

MAX_LINES = 5000
"""Maximum number of lines in one page, and of matches in one search."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Maximum size of the text in one page, in bytes; a page of long lines has fewer lines."""
PAGE_BLOCKS = 64
"""Maximum number of blocks that one page unpacks, which is 4 MiB of text."""
SEARCHED_BLOCKS = 128
"""Maximum number of blocks that one search unpacks, at least 8 MiB of text. The response gives the
line to continue at."""


@dataclass(frozen=True, slots=True)
class LogBlock(TypedRow):
    """A compressed block of lines of a log."""

    table: ClassVar[Table] = log_blocks
    first_line: int
    lines: int
    content: bytes


def page(
    context: Context,
    job_id: str,
    *,
    attempt: int | None = None,
    rank: int = 0,
    from_line: int | None = None,
    limit: int = 500,
) -> LogPage:
    """Return up to `limit` lines of one rank's log.

    Args:
        context: the server's context.
        job_id: id of the job.
        attempt: number of the attempt; by default the newest attempt.
        rank: global rank.
        from_line: number of the first line; a negative number counts from the end. By default, the
          page has the last `limit` lines.
        limit: maximum number of lines; the page ends earlier after `MAX_PAGE_BYTES` of text.

    Raises:
        NotFoundError: no such job or attempt exists.
        InvalidRequestError: the rank has no log, but other ranks of the attempt have logs.
    """
    with context.database.read() as connection:
        attempt_id, number = _attempt(connection, job_id, attempt)
        query = RankLog.select().where(logs.c.attempt_id == attempt_id).order_by(logs.c.rank)
        known = {row.rank: row for row in RankLog.all(connection, query)}
        row = _known(known, rank)
        total = row.lines if row else 0
        first = _first_stored(connection, attempt_id, rank=rank, total=total)
        backwards = from_line is None or from_line < 0
        start = (
            max(total + (-limit if from_line is None else from_line), 0) if backwards else from_line
        )
        assert start is not None
        lines = _lines(
            connection,
            attempt_id,
            rank=rank,
            start=max(start, first),
            limit=limit,
            backwards=backwards,
        )
    return LogPage(
        attempt=number,
        rank=rank,
        ranks=list(known),
        lines=lines,
        first_line=first,
        total_lines=total,
        first_error_line=row.first_error_line if row else None,
        dropped_bytes=row.dropped_bytes if row else 0,
        open_line=_open_line(row),
    )


def search(
    context: Context,
    job_id: str,
    text: str,
    *,
    attempt: int | None = None,
    rank: int = 0,
    from_line: int = 0,
    limit: int = 200,
) -> LogMatches:
    """Return lines that contain `text`, ignoring case, starting at line `from_line`.

    One call searches at most `SEARCHED_BLOCKS` blocks; the next call continues at `next_line`.

    Raises:
        NotFoundError: no such job or attempt exists.
    """
    with context.database.read() as connection:
        attempt_id, number = _attempt(connection, job_id, attempt)
        columns = log_blocks.c
        query = LogBlock.select().where(
            columns.attempt_id == attempt_id,
            columns.rank == rank,
            columns.first_line + columns.lines > from_line,
        )
        rows = LogBlock.all(connection, query.order_by(columns.first_line).limit(SEARCHED_BLOCKS))
    found, next_line = _matches(rows, text.lower(), from_line=from_line, limit=limit)
    if next_line is None and len(rows) == SEARCHED_BLOCKS:
        next_line = rows[-1].first_line + rows[-1].lines
    return LogMatches(attempt=number, rank=rank, lines=found, next_line=next_line)


def _open_line(row: RankLog | None) -> str | None:
    """Return the current text of the last line if the line may still change."""
    rows = last_rows((row and row.partial) or b"")
    return rows[-1] if rows else None


def _attempt(connection: Connection, job_id: str, number: int | None) -> tuple[str, int]:
    query = select(attempts.c.id, attempts.c.number).where(attempts.c.job_id == job_id)
    if number is not None:
        query = query.where(attempts.c.number == number)
    row = connection.execute(query.order_by(attempts.c.number.desc()).limit(1)).one_or_none()
    if row is not None:
        return row.id, row.number
    check_job(connection, job_id)
    raise NotFoundError(f"job {job_id} has no attempt {number or 'yet'}")


def _known(known: dict[int, RankLog], rank: int) -> RankLog | None:
    if rank in known or not known:
        return known.get(rank)
    listed = ", ".join(map(str, list(known)[:20]))
    raise InvalidRequestError.at("query/rank", f"rank {rank} has no log; these have: {listed}")


def _first_stored(connection: Connection, attempt_id: str, *, rank: int, total: int) -> int:
    columns = log_blocks.c
    query = select(func.min(columns.first_line)).where(
        columns.attempt_id == attempt_id, columns.rank == rank
    )
    first = connection.scalar(query)
    return total if first is None else int(first)


def _lines(
    connection: Connection, attempt_id: str, *, rank: int, start: int, limit: int, backwards: bool
) -> list[LogLine]:
    """Return up to `limit` lines from `start` on; a cut drops the first ones if `backwards`."""
    columns = log_blocks.c
    order = columns.first_line.desc() if backwards else columns.first_line
    rows = connection.execute(
        select(columns.first_line, columns.content)
        .where(
            columns.attempt_id == attempt_id,
            columns.rank == rank,
            columns.first_line < start + limit,
            columns.first_line + columns.lines > start,
        )
        .order_by(order)
        .limit(PAGE_BLOCKS)
    ).all()
    found: list[LogLine] = []
    room = MAX_PAGE_BYTES
    for row in rows:
        lines = [
            LogLine(number=row.first_line + index, text=text)
            for index, text in enumerate(unpack_lines(row.content))
            if start <= row.first_line + index < start + limit
        ]
        for line in reversed(lines) if backwards else lines:
            room -= len(line.text)
            if room < 0 and found:
                break
            found.append(line)
        if room < 0:
            break
    return found[::-1] if backwards else found


def _matches(
    rows: Sequence[LogBlock], text: str, *, from_line: int, limit: int
) -> tuple[list[LogLine], int | None]:
    found: list[LogLine] = []
    room = MAX_PAGE_BYTES
    for row in rows:
        for number, line in enumerate(unpack_lines(row.content), start=row.first_line):
            if number < from_line or text not in line.lower():
                continue
            room -= len(line)
            if len(found) == limit or (room < 0 and found):
                return found, number
            found.append(LogLine(number=number, text=line))
    return found, None
