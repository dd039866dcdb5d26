"""Tables of what is reported: series of attempts and nodes, digests of steps, logs."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
)

from server.database.column_types import Json, UtcDateTime
from server.database.schema import ID, ROW_ID, metadata


def _series_id() -> Column[int]:
    series = ForeignKey("metric_series.id", ondelete="CASCADE")
    return Column("series_id", ROW_ID, series, primary_key=True, autoincrement=False)


# Ranks that were found to be slower than their peers.
stragglers = Table(
    "stragglers",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),  # at which it was found
    Column("node", String(100), nullable=False),
    Column("slot", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("factor", Float, nullable=False),
    Column("share", Float, nullable=False),  # of each step that it costs the job
    Column("found_at", UtcDateTime, nullable=False),
    Column("gone_at", UtcDateTime),
    Index(None, "node", "found_at"),
)

metric_series = Table(
    "metric_series",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), nullable=False),
    Column("name", String(100), nullable=False),
    Column("last_step", BigInteger, nullable=False, default=-1),  # greatest that is stored
    Column("tail", Integer, nullable=False, default=0),  # points in metric_tail
    UniqueConstraint("attempt_id", "name"),
)

# Live points, narrow; moved to chunks of about a thousand. All lie above the last chunk.
metric_tail = Table(
    "metric_tail",
    metadata,
    _series_id(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("value", Float),  # null when not finite: SQLite has no NaN
    Column("non_finite", SmallInteger, nullable=False, default=0),  # 1 NaN, 2 +inf, 3 -inf
    sqlite_with_rowid=False,  # half the work of an insert and of a delete
)

metric_chunks = Table(
    "metric_chunks",
    metadata,
    _series_id(),
    Column("first_step", BigInteger, primary_key=True, autoincrement=False),
    Column("last_step", BigInteger, nullable=False),
    Column("count", Integer, nullable=False),
    Column("non_finite", Integer, nullable=False),
    Column("min", Float),  # of its finite values; null when it has none
    Column("max", Float),
    Column("last", Float),
    Column("step_sum", Float),  # of `Points.step_sum`; null where an older version wrote it
    Column("steps", LargeBinary),  # int64 array; null when they are evenly spaced
    Column("times", LargeBinary, nullable=False),  # float64 array
    Column("numbers", LargeBinary, nullable=False),  # float64 array: the values
)

# All series of a node over a minute or a quarter of an hour: see `server.nodes.series`.
node_points = Table(
    "node_points",
    metadata,
    Column("node", String(100), ForeignKey("nodes.name", ondelete="CASCADE"), primary_key=True),
    Column("seconds", Integer, primary_key=True, autoincrement=False),  # of the row
    Column("start", BigInteger, primary_key=True, autoincrement=False),  # seconds since 1970
    Column("data", Json, nullable=False),  # series -> count, minimum, sum, maximum
)

step_digests = Table(
    "step_digests",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(32), nullable=False),
    sqlite_with_rowid=False,
)

logs = Table(
    "logs",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("lines", BigInteger, nullable=False, default=0),  # complete lines so far
    Column("stored_bytes", BigInteger, nullable=False, default=0),
    Column("dropped_bytes", BigInteger, nullable=False, default=0),
    Column("first_error_line", BigInteger),
    Column("partial", LargeBinary),  # start of the last line, until its end arrives
    Column("partial_size", BigInteger, nullable=False, default=0),  # bytes of it so far
)

log_blocks = Table(
    "log_blocks",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("first_line", BigInteger, primary_key=True, autoincrement=False),
    Column("lines", Integer, nullable=False),
    Column("size", Integer, nullable=False),  # bytes before compression
    Column("content", LargeBinary, nullable=False),  # zlib
)
