"""The first schema. Types are written out, so that later code cannot change what this one made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.String(26)
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)

TABLES = (
    "events",
    "idempotency_keys",
    "jobs",
    "liveness",
    "nodes",
    "tokens",
    "attempts",
    "sessions",
    "attempt_nodes",
    "checkpoints",
    "log_blocks",
    "logs",
    "metric_series",
    "requests",
    "step_digests",
    "metric_chunks",
    "metric_tail",
    "spool_offsets",
)


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "events",
        sa.Column("id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("transient", sa.Boolean(), nullable=False),
        sa.Column("job_id", ID),
        sa.Column("attempt", sa.Integer()),
        sa.Column("node", sa.String(length=100)),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_transient_id", "events", ["job_id", "transient", "id"])
    op.create_index("ix_events_transient_at", "events", ["transient", "at"])
    op.create_table(
        "idempotency_keys",
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("actor", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_table(
        "jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("desired", sa.String(length=8), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("pending", sa.Text()),
        sa.Column("queued_at", TIME),
        sa.Column("not_before", TIME),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("retries_used", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("layout", sa.String(length=100), nullable=False),
        sa.Column("storage", sa.String(length=64)),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("ended_at", TIME),
        sa.CheckConstraint("desired IN ('run', 'stop', 'cancel')", name="desired"),
        sa.CheckConstraint(
            "state IN ('queued', 'starting', 'running', 'stopping', "
            "'succeeded', 'failed', 'stopped', 'cancelled')",
            name="state",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_name_id", "jobs", ["name", "id"])
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"])
    op.create_table(
        "liveness",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("beat_at", TIME, nullable=False),
        sa.Column("up_since", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_liveness"),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("roots", sa.Text(), nullable=False),
        sa.Column("version", sa.String(length=50), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("registered_at", TIME, nullable=False),
        sa.Column("heartbeat_at", TIME, nullable=False),
        sa.Column("offline_since", TIME),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=100)),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("last_used_at", TIME),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("hash", name="uq_tokens_hash"),
    )
    op.create_table(
        "attempts",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("desired", sa.String(length=8), nullable=False),
        sa.Column("outcome", sa.String(length=16)),
        sa.Column("failure", sa.Text()),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("overrides", sa.Text(), nullable=False),
        sa.Column("micro_batch_size", sa.Integer(), nullable=False),
        sa.Column("parent_checkpoint_id", sa.String(length=200)),
        sa.Column("start_step", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("rendezvous_port", sa.Integer(), nullable=False),
        sa.Column("provenance", sa.Text()),
        sa.Column("continuity", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("ended_at", TIME),
        sa.CheckConstraint("desired IN ('run', 'stop', 'cancel')", name="desired"),
        sa.CheckConstraint(
            "state IN ('placed', 'starting', 'running', 'stopping', 'ended')", name="state"
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_attempts_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("job_id", "number", name="uq_attempts_job_id_number"),
    )
    op.create_index("ix_attempts_state", "attempts", ["state"])
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("token_id", ID, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name="fk_sessions_token_id_tokens", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("hash", name="pk_sessions"),
    )
    op.create_table(
        "attempt_nodes",
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("node_rank", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16)),
        sa.Column("failure", sa.Text()),
        sa.Column("token_hash", sa.String(length=64)),
        sa.Column("identity", sa.Text()),
        sa.Column("sent_at", TIME),
        sa.Column("claimed_at", TIME),
        sa.Column("last_report_at", TIME),
        sa.Column("unreachable_since", TIME),
        sa.Column("exit", sa.Text()),
        sa.CheckConstraint("state IN ('placed', 'claimed', 'running', 'ended')", name="state"),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_attempt_nodes_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_attempt_nodes_node_nodes"),
        sa.PrimaryKeyConstraint("attempt_id", "node", name="pk_attempt_nodes"),
        sa.UniqueConstraint("token_hash", name="uq_attempt_nodes_token_hash"),
    )
    op.create_index("ix_attempt_nodes_node_state", "attempt_nodes", ["node", "state"])
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("root", sa.String(length=32), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("layout", sa.String(length=100), nullable=False),
        sa.Column("save_seconds", sa.Float(), nullable=False),
        sa.Column("parent_id", sa.String(length=200)),
        sa.Column("metadata_digest", sa.String(length=32), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_checkpoints_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_checkpoints_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
    )
    op.create_index(
        "ix_checkpoints_job_id_attempt_step", "checkpoints", ["job_id", "attempt", "step"]
    )
    op.create_table(
        "log_blocks",
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("first_line", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_log_blocks_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", "first_line", name="pk_log_blocks"),
    )
    op.create_table(
        "logs",
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("dropped_bytes", sa.BigInteger(), nullable=False),
        sa.Column("first_error_line", sa.BigInteger()),
        sa.Column("partial", sa.LargeBinary()),
        sa.Column("partial_size", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name="fk_logs_attempt_id_attempts", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name="pk_logs"),
    )
    op.create_table(
        "metric_series",
        sa.Column("id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("tail", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_metric_series_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_metric_series"),
        sa.UniqueConstraint("attempt_id", "name", name="uq_metric_series_attempt_id_name"),
    )
    op.create_table(
        "requests",
        sa.Column("id", ID, nullable=False),
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_requests_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
    )
    op.create_index("ix_requests_attempt_id", "requests", ["attempt_id"])
    op.create_table(
        "step_digests",
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_step_digests_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "step", name="pk_step_digests"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric_chunks",
        sa.Column("series_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("first_step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("non_finite", sa.Integer(), nullable=False),
        sa.Column("min", sa.Float()),
        sa.Column("max", sa.Float()),
        sa.Column("last", sa.Float()),
        sa.Column("steps", sa.LargeBinary()),
        sa.Column("times", sa.LargeBinary(), nullable=False),
        sa.Column("numbers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"],
            ["metric_series.id"],
            name="fk_metric_chunks_series_id_metric_series",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("series_id", "first_step", name="pk_metric_chunks"),
    )
    op.create_table(
        "metric_tail",
        sa.Column("series_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("value", sa.Float()),
        sa.Column("non_finite", sa.SmallInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"],
            ["metric_series.id"],
            name="fk_metric_tail_series_id_metric_series",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("series_id", "step", name="pk_metric_tail"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "spool_offsets",
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("file", sa.String(length=32), nullable=False),
        sa.Column("acknowledged", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id", "node"],
            ["attempt_nodes.attempt_id", "attempt_nodes.node"],
            name="fk_spool_offsets_attempt_id_attempt_nodes",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "node", "file", name="pk_spool_offsets"),
    )


def downgrade() -> None:
    """Drop them, those first that refer to others."""
    for table in reversed(TABLES):
        op.drop_table(table)
