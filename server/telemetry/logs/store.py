"""Stores logs of ranks in blocks, within a quota."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from sqlalchemy import BindParameter, Connection, Table, bindparam, delete, func, select, tuple_

from server.core.database.metric_and_log_tables import log_blocks, logs
from server.core.database.rows import TypedRow
from server.core.database.upsert import insert_or_replace, inserted
from server.telemetry.logs.blocks import BLOCK_BYTES, blocks_of, first_error, unpack_lines
from trainyard.outside.terminal_rows import last_rows, split_rows

DROPPED_AT_ONCE = 512
"""Maximum number of blocks of a log that one report deletes; so many blocks hold more bytes than
one report adds."""


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
_later = log_blocks.alias("later")
_LAST_BLOCK = (
    select(func.max(_later.c.first_line))
    .where(_later.c.attempt_id == logs.c.attempt_id, _later.c.rank == logs.c.rank)
    .correlate(logs)
    .scalar_subquery()
)
_OPEN_BLOCKS = (
    select(
        *(log_blocks.c.attempt_id, log_blocks.c.rank),
        *(log_blocks.c.first_line, log_blocks.c.size, log_blocks.c.content),
    )
    .select_from(logs)
    .join(
        log_blocks,
        (log_blocks.c.attempt_id == logs.c.attempt_id)
        & (log_blocks.c.rank == logs.c.rank)
        & (log_blocks.c.first_line == _LAST_BLOCK),
    )
    .where(tuple_(logs.c.attempt_id, logs.c.rank).in_(_KEYS), log_blocks.c.size < BLOCK_BYTES)
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


def store_output(
    connection: Connection, output: Mapping[LogKey, bytes], *, quota: int
) -> list[Stored]:
    """Append output to logs; a log above `quota` bytes loses its oldest blocks.

    The number of statements does not depend on the number of logs, except for logs above the quota.
    """
    if not output:
        return []
    rows = RankLog.all(connection, _LOGS, {"keys": list(output)})
    found = {(row.attempt_id, row.rank): row for row in rows}
    grown = []
    for key, new in output.items():
        row = found.get(key) or inserted(RankLog, {"attempt_id": key[0], "rank": key[1]})
        grown.append(_Growth(row, *split_rows(row.partial or b"", new)))
    return _append(connection, grown, quota=quota)


def close_output(
    connection: Connection, attempt_id: str, ranks: Iterable[int], *, quota: int
) -> list[Stored]:
    """Store the unfinished lines of ended ranks, because an ended rank cannot finish them."""
    query = RankLog.select().where(
        logs.c.attempt_id == attempt_id, logs.c.rank.in_(list(ranks)), logs.c.partial_size > 0
    )
    rows = RankLog.all(connection, query)
    ends = [_Growth(row, last_rows(row.partial or b""), b"") for row in rows]
    return _append(connection, ends, quota=quota)


def _append(connection: Connection, grown: Sequence[_Growth], *, quota: int) -> list[Stored]:
    added = _add_blocks(connection, [each for each in grown if each.lines])
    rows = []
    for each in grown:
        row, lines, partial = each.row, each.lines, each.partial
        error = first_error(lines) if row.first_error_line is None else None
        stored = row.stored_bytes + added.get(each.key, 0)
        dropped = _drop_oldest(connection, row, stored - quota) if stored > quota else 0
        changed = {
            "lines": row.lines + len(lines),
            "stored_bytes": stored - dropped,
            "dropped_bytes": row.dropped_bytes + dropped,
            "first_error_line": row.first_error_line if error is None else row.lines + error,
            "partial": partial or None,
            "partial_size": len(partial),
        }
        rows.append(asdict(row) | changed)
    insert_or_replace(connection, logs, rows)
    return [Stored(*each.key, each.row.lines + len(each.lines)) for each in grown]


def _add_blocks(connection: Connection, grown: Sequence[_Growth]) -> dict[LogKey, int]:
    """Store lines after the existing ones; return the number of added bytes by log."""
    if not grown:
        return {}
    found = connection.execute(_OPEN_BLOCKS, {"keys": [each.key for each in grown]})
    last = {(row.attempt_id, row.rank): row for row in found}
    added: dict[LogKey, int] = {}
    rows: list[dict[str, Any]] = []
    for each in grown:
        first_line, replaced, lines = each.row.lines, 0, each.lines
        if (open_block := last.get(each.key)) is not None:
            # The last block is not full, so replace it by one that also has the new lines.
            first_line, replaced = open_block.first_line, open_block.size
            lines = [*unpack_lines(open_block.content), *lines]
        blocks = blocks_of(first_line, lines)
        added[each.key] = sum(block.size for block in blocks) - replaced
        own = {"attempt_id": each.row.attempt_id, "rank": each.row.rank}
        rows += (own | asdict(block) for block in blocks)
    insert_or_replace(connection, log_blocks, rows)
    return added


def _drop_oldest(connection: Connection, row: RankLog, excess: int) -> int:
    """Delete at least `excess` bytes of the oldest blocks, but at most `DROPPED_AT_ONCE` blocks;
    return the number of deleted bytes."""
    columns = log_blocks.c
    mine = (columns.attempt_id == row.attempt_id) & (columns.rank == row.rank)
    oldest = select(columns.first_line, columns.size).where(mine).order_by(columns.first_line)
    dropped, end = 0, -1
    for first_line, size in connection.execute(oldest.limit(DROPPED_AT_ONCE)).all():
        if dropped >= excess:
            break
        dropped, end = dropped + size, first_line
    connection.execute(delete(log_blocks).where(mine, columns.first_line <= end))
    return dropped
