"""Tables of series, digests of steps, logs, commands, packs, artifacts, imports and facts."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from server.core.database.column_types import Json, Record, UtcDateTime
from server.core.database.schema import ID, ROW_ID, metadata
from trainyard.protocol.past_runs.views import ImportedRun
from trainyard.protocol.shell_sessions.messages import Terminal
from trainyard.run.artifacts.artifact_records import LONGEST_KIND, LONGEST_NAME
from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.metric_names import LONGEST


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
    Column("share", Float, nullable=False),  # part of each step that the rank costs the job
    Column("found_at", UtcDateTime, nullable=False),
    Column("gone_at", UtcDateTime),
    Index(None, "node", "found_at"),
)

metric_series = Table(
    "metric_series",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), nullable=False),
    Column("name", String(LONGEST), nullable=False),
    Column("last_step", BigInteger, nullable=False, default=-1),  # highest stored step
    Column("tail", Integer, nullable=False, default=0),  # number of points in metric_tails
    UniqueConstraint("attempt_id", "name"),
)

# Points that are not compacted yet. A row has the points of one report, or the rest after a
# compaction, which moves points to chunks of about a thousand.
metric_tails = Table(
    "metric_tails",
    metadata,
    _series_id(),
    Column("last_step", BigInteger, primary_key=True, autoincrement=False),
    Column("first_step", BigInteger, nullable=False),
    Column("points", LargeBinary, nullable=False),  # per point: int64 step, float64 time and value
    sqlite_with_rowid=False,
)

metric_chunks = Table(
    "metric_chunks",
    metadata,
    _series_id(),
    Column("first_step", BigInteger, primary_key=True, autoincrement=False),
    Column("last_step", BigInteger, nullable=False),
    Column("count", Integer, nullable=False),
    Column("non_finite", Integer, nullable=False),
    Column("min", Float),  # of the finite values; null if there are none
    Column("max", Float),
    Column("last", Float),
    Column("step_sum", Float),  # `Points.step_sum`; null if an older version wrote the row
    Column("steps", LargeBinary),  # int64 array; null if evenly spaced
    Column("times", LargeBinary, nullable=False),  # float64 array
    Column("numbers", LargeBinary, nullable=False),  # float64 array: the values
)

# All series of a node over one minute or 15 minutes; see `server.cluster.nodes.series`.
node_points = Table(
    "node_points",
    metadata,
    Column("node", String(100), ForeignKey("nodes.name", ondelete="CASCADE"), primary_key=True),
    Column("seconds", Integer, primary_key=True, autoincrement=False),  # period of the row
    Column("start", BigInteger, primary_key=True, autoincrement=False),  # Unix time in seconds
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

# Values that the ranks of a program logged for steps that are not folded yet; see
# `server.telemetry.metrics.rank_steps`.
rank_steps = Table(
    "rank_steps",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("staged_at", UtcDateTime, nullable=False),  # arrival of the step's first values
    Column("data", Json, nullable=False),
)

rank_progress = Table(
    "rank_progress",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, nullable=False),  # last step that the rank logged
)

logs = Table(
    "logs",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("lines", BigInteger, nullable=False, default=0),  # number of complete lines so far
    Column("stored_bytes", BigInteger, nullable=False, default=0),
    Column("dropped_bytes", BigInteger, nullable=False, default=0),
    Column("first_error_line", BigInteger),
    Column("partial", LargeBinary),  # last lines, which may still change
    Column("partial_size", BigInteger, nullable=False, default=0),  # size of `partial` in bytes
)

log_blocks = Table(
    "log_blocks",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("first_line", BigInteger, primary_key=True, autoincrement=False),
    Column("lines", Integer, nullable=False),
    Column("size", Integer, nullable=False),  # number of bytes before compression
    Column("content", LargeBinary, nullable=False),  # the compressed lines (zlib)
)

# Commands of people in running attempts, with the bytes in transit.
shells = Table(
    "shells",
    metadata,
    Column("id", ID, primary_key=True),
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), nullable=False),
    Column("node", String(100), nullable=False),
    Column("rank", Integer),
    Column("argv", Json, nullable=False),  # empty for the node's shell
    Column("terminal", Record(Terminal)),
    Column("seconds", Float, nullable=False),  # time limit of the command, in seconds
    Column("created_by", String(100), nullable=False),
    Column("token_id", ID, index=True),  # token that requested the command; null without one
    Column("user_id", ID, index=True),  # user who requested the command
    Column("session_id", ID, index=True),  # browser session that requested the command
    Column("created_at", UtcDateTime, nullable=False),
    Column("client_at", UtcDateTime, nullable=False),  # time of the person's last request
    Column("started_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    Column("exit_code", Integer),
    Column("failure", Text),
    Column("closed", Boolean, nullable=False, default=False),  # whether the person has left
    # Unread bytes, from the start offset on; read bytes are dropped.
    Column("output", LargeBinary, nullable=False, default=b""),
    Column("output_start", BigInteger, nullable=False, default=0),
    Column("input", LargeBinary, nullable=False, default=b""),
    Column("input_start", BigInteger, nullable=False, default=0),
    Column("input_ended", Boolean, nullable=False, default=False),
    Index("ix_shells_attempt_id_node", "attempt_id", "node"),
)

# Packs with the code of programs, stored in blocks.
packs = Table(
    "packs",
    metadata,
    Column("id", ID, primary_key=True),
    Column("digest", String(71), unique=True),  # null until the upload of the pack is complete
    Column("size", BigInteger, nullable=False),  # number of bytes stored so far
    Column("created_by", String(100), nullable=False),
    Column("token_id", ID, index=True),  # token that uploaded the pack; null without one
    Column("user_id", ID, index=True),  # user who uploaded the pack
    Column("named_at", UtcDateTime, nullable=False),  # when an upload, plan or job last named it
    Index("ix_packs_named_at", "named_at"),
)

# Users who uploaded a pack that was stored already.
pack_uploaders = Table(
    "pack_uploaders",
    metadata,
    Column("pack_id", ID, ForeignKey("packs.id", ondelete="CASCADE"), primary_key=True),
    Column("user_id", ID, primary_key=True),
)

pack_blocks = Table(
    "pack_blocks",
    metadata,
    Column("pack_id", ID, ForeignKey("packs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)

# `pack_id` has no CASCADE, so the database does not delete a pack that a job uses.
job_packs = Table(
    "job_packs",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("pack_id", ID, ForeignKey("packs.id"), nullable=False),
    Index("ix_job_packs_pack_id", "pack_id"),
)

# Contents of artifacts; a job stores each content once.
artifact_contents = Table(
    "artifact_contents",
    metadata,
    Column("id", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="SET NULL")),  # null: to be deleted
    Column("digest", String(71), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("stored", BigInteger, nullable=False, default=0),  # number of bytes stored so far
    Column("complete", Boolean, nullable=False, default=False),  # whether the digest was verified
    Column("media_type", String(40)),  # set only for an image
    Column("touched_at", UtcDateTime, nullable=False),  # time of the last block
    UniqueConstraint("job_id", "digest"),
)

artifact_blocks = Table(
    "artifact_blocks",
    metadata,
    Column(
        "content_id", ID, ForeignKey("artifact_contents.id", ondelete="CASCADE"), primary_key=True
    ),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)

# Images, histograms and files that attempts logged.
artifacts = Table(
    "artifacts",
    metadata,
    Column("id", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("process", Integer),  # null if the supervisor collected the artifact
    Column("kind", String(LONGEST_KIND), nullable=False),
    Column("name", String(LONGEST_NAME), nullable=False),
    Column("step", BigInteger),
    Column("caption", Text, nullable=False),
    Column("time", Float, nullable=False),
    Column("content_id", ID, ForeignKey("artifact_contents.id", ondelete="CASCADE")),
    Column("histogram", Json),
    Index("ix_artifacts_job_id", "job_id", "id"),
    Index("ix_artifacts_job_id_kind", "job_id", "kind", "id"),
    Index("ix_artifacts_content_id", "content_id"),
)

# Runs that other tools recorded, one per imported job.
imports = Table(
    "imports",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("project", String(80), nullable=False),  # of the job
    Column("digest", String(71), nullable=False),  # of the content
    Column("run", Record(ImportedRun), nullable=False),
    Column("reason", Text, nullable=False),  # reason of the job after all points are stored
    Column("received", BigInteger, nullable=False),  # number of points stored so far
    UniqueConstraint("project", "digest"),  # a global one would tell of imports in hidden projects
)

# Configuration and summary of jobs with programs and of imported runs.
job_facts = Table(
    "job_facts",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("facts", Record(RunFacts), nullable=False),
)

# Configuration values as search words, such as `lr=0.0003`.
config_words = Table(
    "config_words",
    metadata,
    Column("word", String(200), primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, index=True),
)
