"""Tables of tokens, nodes and their sources, projects, the scheduler and events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def create() -> None:
    """Create these tables with their indexes."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=100)),
        sa.Column("source", sa.String(length=31)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("hash", name="uq_tokens_hash"),
    )
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.String(length=26), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name="fk_sessions_token_id_tokens", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("hash", name="pk_sessions"),
    )
    op.create_table(
        "failed_logins",
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("begin_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("address", name="pk_failed_logins"),
    )
    op.create_table(
        "liveness",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("up_since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_liveness"),
    )
    op.create_table(
        "leaders",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("holder", sa.String(length=255)),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_leaders"),
    )
    op.create_table(
        "periodic_tasks",
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("lag_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_periodic_tasks"),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("max_slots", sa.Integer()),
        sa.Column("slot_hours_per_month", sa.Float()),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    op.create_table(
        "project_usage",
        sa.Column("project", sa.String(length=80), nullable=False),
        sa.Column("month", sa.String(length=7), nullable=False),
        sa.Column("slot_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "month", name="pk_project_usage"),
    )
    op.create_table(
        "demands",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("key", name="pk_demands"),
    )
    op.create_table(
        "sources",
        sa.Column("name", sa.String(length=31), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("request_seconds", sa.Float()),
        sa.Column("idle_seconds", sa.Float(), nullable=False),
        sa.Column("leave_seconds", sa.Float(), nullable=False),
        sa.Column("check_addresses", sa.Boolean(), nullable=False),
        sa.Column("version", sa.String(length=50), nullable=False),
        sa.Column("heard_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_away", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("listed_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text()),
        sa.Column("needs_login", sa.Text()),
        sa.Column("paused_at", sa.DateTime(timezone=True)),
        sa.Column("paused_by", sa.String(length=100)),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_sources"),
    )
    op.create_table(
        "node_requests",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("source", sa.String(length=31), nullable=False),
        sa.Column("purpose", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float()),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("caused_by", sa.Text(), nullable=False),
        sa.Column("by_person", sa.Boolean(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True)),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("sends", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cancel_at", sa.DateTime(timezone=True)),
        sa.Column("ask", sa.String(length=8)),
        sa.Column("ref", sa.String(length=200)),
        sa.Column("engine_state", sa.String(length=16), server_default="unknown", nullable=False),
        sa.Column("unknown_since", sa.DateTime(timezone=True)),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("explanation", sa.Text()),
        sa.Column("starts_at", sa.DateTime(timezone=True)),
        sa.Column("ends_at", sa.DateTime(timezone=True)),
        sa.Column("results", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "state IN ('wanted', 'pending', 'running', 'leaving', 'ended')",
            name=op.f("ck_node_requests_state"),
        ),
        sa.ForeignKeyConstraint(
            ["source"], ["sources.name"], name="fk_node_requests_source_sources", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_node_requests"),
    )
    op.create_index("ix_node_requests_source_id", "node_requests", ["source", "id"])
    op.create_index("ix_node_requests_ended_at", "node_requests", ["ended_at"])
    op.create_index(
        "ix_node_requests_open",
        "node_requests",
        ["source"],
        sqlite_where=sa.text("state != 'ended'"),
        postgresql_where=sa.text("state != 'ended'"),
    )
    op.create_table(
        "pilots",
        sa.Column("request_id", sa.String(length=26), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("named", sa.String(length=200)),
        sa.Column("addresses", sa.Text(), server_default="[]", nullable=False),
        sa.Column("joined", sa.String(length=200)),
        sa.Column("gone_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["node_requests.id"],
            name="fk_pilots_request_id_node_requests",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("request_id", "number", name="pk_pilots"),
        sa.UniqueConstraint("secret_hash", name="uq_pilots_secret_hash"),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("partitions", sa.Text(), server_default="[]", nullable=False),
        sa.Column("roots", sa.Text(), nullable=False),
        sa.Column("worker_labels", sa.Text(), server_default="{}", nullable=False),
        sa.Column("set_labels", sa.Text(), server_default="{}", nullable=False),
        sa.Column("version", sa.String(length=50), nullable=False),
        sa.Column("protocol", sa.Integer(), server_default="2", nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("drain", sa.Text()),
        sa.Column("withheld", sa.Text(), server_default="{}", nullable=False),
        sa.Column("clock_skew_seconds", sa.Float()),
        sa.Column("clock_is_wrong", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("network_checked_at", sa.DateTime(timezone=True)),
        sa.Column("trusted_since", sa.DateTime(timezone=True)),
        sa.Column("inbox", sa.String(length=8), server_default="broker", nullable=False),
        sa.Column("request_id", sa.String(length=26)),
        sa.Column("ends_at", sa.DateTime(timezone=True)),
        sa.Column("notice", sa.Text()),
        sa.Column("sample", sa.Text()),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("offline_since", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
    )
    op.create_index("ix_nodes_request_id", "nodes", ["request_id"])
    op.create_index("ix_nodes_registered_at", "nodes", ["registered_at"])
    op.create_table(
        "node_points",
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("seconds", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["node"], ["nodes.name"], name="fk_node_points_node_nodes", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("node", "seconds", "start", name="pk_node_points"),
    )
    op.create_table(
        "capacity_changes",
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("online", sa.Boolean(), nullable=False),
        sa.Column("takes_jobs", sa.Boolean(), nullable=False),
        sa.Column("withheld", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("node", "since", name="pk_capacity_changes"),
    )
    op.create_table(
        "holdings",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("job_name", sa.String(length=80), nullable=False),
        sa.Column("project", sa.String(length=80), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("spare", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("spent", sa.Text()),
        sa.PrimaryKeyConstraint("attempt_id", "node", "since", name="pk_holdings"),
    )
    op.create_index(
        "ix_holdings_unsettled",
        "holdings",
        ["job_id"],
        sqlite_where=sa.text("spent IS NULL"),
        postgresql_where=sa.text("spent IS NULL"),
    )
    op.create_index("ix_holdings_until", "holdings", ["until"])
    op.create_index("ix_holdings_job_id", "holdings", ["job_id"])
    op.create_table(
        "events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=26)),
        sa.Column("attempt", sa.Integer()),
        sa.Column("node", sa.String(length=100)),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])
    op.create_table(
        "notices",
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("part", sa.String(length=200), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", sa.Integer()),
        sa.Column("node", sa.String(length=100)),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", "part", name="pk_notices"),
    )
    op.create_index("ix_notices_seq", "notices", ["seq"])
    op.create_index("ix_notices_at", "notices", ["at"])
    op.create_table(
        "deleted_notices",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deleted_notices"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("actor", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
