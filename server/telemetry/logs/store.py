"""Stores logs of ranks in blocks, within a quota."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from sqlalchemy import (
    BindParameter,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from server.core.database.metric_and_log_tables import log_blocks, logs
from server.core.database.rows import TypedRow
from server.telemetry.logs.blocks import BLOCK_BYTES, blocks_of, first_error, unpack_lines
from trainyard.outside.terminal_rows import last_rows, split_rows

DROPPED_AT_ONCE = 512
"""Maximum number of blocks that one report deletes; they hold more than one report adds."""


@dataclass(frozen=True, slots=True)
class RankLog(TypedRow):
    """The log of one rank, without the blocks that contain its lines."""

    table: ClassVar[Table] = logs
    attempt_id: str
    rank: int
    lines: int
    stored_bytes: int
    dropped_bytes: int
    first_error_line: int | None
    partial: bytes | None
    """State of the lines that the rank has not finished."""
    partial_size: int


@dataclass(frozen=True)
class Stored:
    """A log to which a report added output."""

    attempt_id: str
    rank: int
    lines: int
    """Number of complete lines after the report."""


LogKey = tuple[str, int]
"""Attempt id and global rank."""

# Statements that every report with output uses are built once, as in
# `server.jobs.attempts.reports`.
_KEYS: BindParameter[Sequence[LogKey]] = bindparam("keys", expanding=True)
_LOGS = RankLog.select().where(tuple_(logs.c.attempt_id, logs.c.rank).in_(_KEYS))
_MY_LOG = and_(logs.c.attempt_id == bindparam("of_attempt"), logs.c.rank == bindparam("of_rank"))
_GROW_LOG = update(logs).where(_MY_LOG)
_later = log_blocks.alias("later")
_LAST_BLOCK = (
    select(func.max(_later.c.first_line))
    .where(_later.c.attempt_id == logs.c.attempt_id, _later.c.rank == logs.c.rank)
    .correlate(logs)
    .scalar_subquery()
)
_OPEN_BLOCKS = (
    select(
        log_blocks.c.attempt_id,
        log_blocks.c.rank,
        log_blocks.c.first_line,
        log_blocks.c.size,
        log_blocks.c.content,
    )
    .select_from(logs)
    .join(
        log_blocks,
        and_(
            log_blocks.c.attempt_id == logs.c.attempt_id,
            log_blocks.c.rank == logs.c.rank,
            log_blocks.c.first_line == _LAST_BLOCK,
        ),
    )
    .where(tuple_(logs.c.attempt_id, logs.c.rank).in_(_KEYS), log_blocks.c.size < BLOCK_BYTES)
)
_DROP_BLOCK = delete(log_blocks).where(
    log_blocks.c.attempt_id == bindparam("of_attempt"),
    log_blocks.c.rank == bindparam("of_rank"),
    log_blocks.c.first_line == bindparam("first"),
)


@dataclass(frozen=True)
class _Growth:
    """New lines of one log."""

    row: RankLog
    lines: Sequence[str]
    partial: bytes
    """State of the lines that the rank has not finished."""

    @property
    def key(self) -> LogKey:
        return self.row.attempt_id, self.row.rank

    @property
    def of(self) -> dict[str, Any]:
        return {"of_attempt": self.row.attempt_id, "of_rank": self.row.rank}


def store_output(
    connection: Connection, output: Mapping[LogKey, bytes], *, quota: int
) -> list[Stored]:
    """Append output to logs; a log above `quota` bytes loses its oldest blocks.

    The number of statements does not depend on the number of logs, except for logs above the quota.
    """
    if not output:
        return []
    rows = _rows(connection, list(output))
    return _append(
        connection,
        [_Growth(row, *split_rows(row.partial or b"", output[key])) for key, row in rows.items()],
        quota=quota,
    )


def close_output(
    connection: Connection, attempt_id: str, ranks: Iterable[int], *, quota: int
) -> list[Stored]:
    """Store the unfinished lines of ended ranks, because the lines can no longer change."""
    query = RankLog.select().where(
        logs.c.attempt_id == attempt_id, logs.c.rank.in_(list(ranks)), logs.c.partial_size > 0
    )
    rows = RankLog.all(connection, query)
    ends = [_Growth(row, last_rows(row.partial or b""), b"") for row in rows]
    return _append(connection, ends, quota=quota)


def _rows(connection: Connection, keys: Sequence[LogKey]) -> dict[LogKey, RankLog]:
    """Return the logs; create missing ones."""
    found = _read_rows(connection, keys)
    if missing := [key for key in keys if key not in found]:
        rows = [{"attempt_id": attempt_id, "rank": rank} for attempt_id, rank in missing]
        connection.execute(insert(logs), rows)
        found |= _read_rows(connection, missing)
    return found


def _read_rows(connection: Connection, keys: Sequence[LogKey]) -> dict[LogKey, RankLog]:
    rows = RankLog.all(connection, _LOGS, {"keys": keys})
    return {(row.attempt_id, row.rank): row for row in rows}


def _append(connection: Connection, grown: Sequence[_Growth], *, quota: int) -> list[Stored]:
    if not grown:
        return []
    added = _add_blocks(connection, [each for each in grown if each.lines])
    rows = []
    for each in grown:
        row, lines, partial = each.row, each.lines, each.partial
        error = first_error(lines) if row.first_error_line is None else None
        stored = row.stored_bytes + added.get(each.key, 0)
        dropped = _drop_oldest(connection, row, stored - quota) if stored > quota else 0
        values = {
            "lines": row.lines + len(lines),
            "stored_bytes": stored - dropped,
            "dropped_bytes": row.dropped_bytes + dropped,
            "first_error_line": row.first_error_line if error is None else row.lines + error,
            "partial": partial or None,
            "partial_size": len(partial),
        }
        rows.append(each.of | values)
    connection.execute(_GROW_LOG, rows)
    return [Stored(*each.key, each.row.lines + len(each.lines)) for each in grown]


def _add_blocks(connection: Connection, grown: Sequence[_Growth]) -> dict[LogKey, int]:
    """Store lines after the existing ones; return the number of added bytes by log."""
    if not grown:
        return {}
    keys = [each.key for each in grown]
    found = connection.execute(_OPEN_BLOCKS, {"keys": keys})
    last = {(row.attempt_id, row.rank): row for row in found}
    added: dict[LogKey, int] = {}
    rows: list[dict[str, Any]] = []
    for each in grown:
        first_line, replaced, lines = each.row.lines, 0, each.lines
        if (open_block := last.get(each.key)) is not None:
            # The last block is not full, so rewrite it with the new lines.
            first_line, replaced = open_block.first_line, open_block.size
            lines = [*unpack_lines(open_block.content), *lines]
        blocks = blocks_of(first_line, lines)
        added[each.key] = sum(block.size for block in blocks) - replaced
        own = {"attempt_id": each.row.attempt_id, "rank": each.row.rank}
        rows += ({**own, **asdict(block)} for block in blocks)
    if last:
        dropped = [
            {"of_attempt": attempt_id, "of_rank": rank, "first": row.first_line}
            for (attempt_id, rank), row in last.items()
        ]
        connection.execute(_DROP_BLOCK, dropped)
    connection.execute(insert(log_blocks), rows)
    return added


def _drop_oldest(connection: Connection, row: RankLog, excess: int) -> int:
    """Delete at least `excess` bytes of oldest blocks; return the number of deleted bytes."""
    columns = log_blocks.c
    mine = (columns.attempt_id == row.attempt_id) & (columns.rank == row.rank)
    oldest = connection.execute(
        select(columns.first_line, columns.size)
        .where(mine)
        .order_by(columns.first_line)
        .limit(DROPPED_AT_ONCE)
    ).all()
    dropped, end = 0, -1
    for first_line, size in oldest:
        if dropped >= excess:
            break
        dropped, end = dropped + size, first_line
    connection.execute(delete(log_blocks).where(mine, columns.first_line <= end))
    return dropped
