"""Tables of jobs: attempts, checkpoints, operations, packs, commands and facts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def create() -> None:
    """Create these tables with their indexes."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("project", sa.String(length=80), server_default="default", nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_digest", sa.String(length=64), nullable=False),
        sa.Column("env", sa.Text()),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("desired", sa.String(length=8), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("pending", sa.Text()),
        sa.Column("chosen", sa.Text()),
        sa.Column("queued_at", sa.DateTime(timezone=True)),
        sa.Column("not_before", sa.DateTime(timezone=True)),
        sa.Column("demand", sa.String(length=64)),
        sa.Column("lasts_seconds", sa.Float()),
        sa.Column("lasts_on", sa.String(length=8)),
        sa.Column("lasts_on_name", sa.Text()),
        sa.Column("pace_digest", sa.String(length=64)),
        sa.Column("max_runtime_seconds", sa.Float()),
        sa.Column("leave_seconds", sa.Float()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("retries_used", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("min_world_size", sa.Integer()),
        sa.Column("max_world_size", sa.Integer()),
        sa.Column("spare_nodes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("spare_slots", sa.Integer(), server_default="0", nullable=False),
        sa.Column("preemptible", sa.Boolean(), server_default="1", nullable=False),
        sa.Column("size_change", sa.Text()),
        sa.Column("layout", sa.String(length=100), nullable=False),
        sa.Column("storage", sa.String(length=64)),
        sa.Column("imported_from", sa.String(length=16)),
        sa.Column("forked_from", sa.String(length=200)),
        sa.Column("fork_parts", sa.Text()),
        sa.Column("fork_step", sa.Integer()),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("token_id", sa.String(length=26)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("desired IN ('run', 'stop', 'cancel')", name=op.f("ck_jobs_desired")),
        sa.CheckConstraint(
            "state IN ('queued', 'starting', 'running', 'stopping', "
            "'succeeded', 'failed', 'stopped', 'cancelled')",
            name=op.f("ck_jobs_state"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_name_id", "jobs", ["name", "id"])
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"])
    op.create_index("ix_jobs_search", "jobs", ["id", "state", "name", "tags"])
    op.create_index("ix_jobs_forked_from", "jobs", ["forked_from"])
    op.create_index("ix_jobs_project_id", "jobs", ["project", "id"])
    op.create_index(
        "ix_jobs_queue",
        "jobs",
        ["state", "demand", "priority", "queued_at", "id", "project", "world_size", "spare_slots"],
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("desired", sa.String(length=8), nullable=False),
        sa.Column("outcome", sa.String(length=16)),
        sa.Column("failure", sa.Text()),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("device", sa.String(length=8), server_default="cpu", nullable=False),
        sa.Column("overrides", sa.Text(), nullable=False),
        sa.Column("micro_batch_size", sa.Integer(), nullable=False),
        sa.Column("parent_checkpoint_id", sa.String(length=200)),
        sa.Column("start_step", sa.Integer(), nullable=False),
        sa.Column("parent_named", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("allow_code_change", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("skip", sa.Text(), server_default="[]", nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("rendezvous_port", sa.Integer(), nullable=False),
        sa.Column("check_network", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("ordered_at", sa.DateTime(timezone=True)),
        sa.Column("tainted", sa.Boolean(), server_default="1", nullable=False),
        sa.Column("pace_digest", sa.String(length=64)),
        sa.Column("expected_end_at", sa.DateTime(timezone=True)),
        sa.Column("runs_until", sa.DateTime(timezone=True)),
        sa.Column("gives_way", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("preempted", sa.Text()),
        sa.Column("provenance", sa.Text()),
        sa.Column("continuity", sa.Text()),
        sa.Column("save_failed", sa.Text()),
        sa.Column("rank_times", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "desired IN ('run', 'stop', 'cancel')", name=op.f("ck_attempts_desired")
        ),
        sa.CheckConstraint(
            "state IN ('placed', 'starting', 'running', 'stopping', 'ended')",
            name=op.f("ck_attempts_state"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_attempts_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("job_id", "number", name="uq_attempts_job_id_number"),
    )
    op.create_index("ix_attempts_state", "attempts", ["state"])
    op.create_index("ix_attempts_ended_at", "attempts", ["ended_at"])
    op.create_index("ix_attempts_pace", "attempts", ["pace_digest", "ended_at"])
    op.create_table(
        "attempt_nodes",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("node_rank", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16)),
        sa.Column("failure", sa.Text()),
        sa.Column("token_hash", sa.String(length=64)),
        sa.Column("worker", sa.Text()),
        sa.Column("identity", sa.Text()),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("claimed_at", sa.DateTime(timezone=True)),
        sa.Column("last_report_at", sa.DateTime(timezone=True)),
        sa.Column("unreachable_since", sa.DateTime(timezone=True)),
        sa.Column("lost_at", sa.DateTime(timezone=True)),
        sa.Column("spare_since", sa.DateTime(timezone=True)),
        sa.Column("exit", sa.Text()),
        sa.Column("acknowledged", sa.Text(), server_default="{}", nullable=False),
        sa.CheckConstraint(
            "state IN ('placed', 'claimed', 'running', 'spare', 'ended')",
            name=op.f("ck_attempt_nodes_state"),
        ),
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
    op.create_index(
        "ix_attempt_nodes_holding",
        "attempt_nodes",
        ["node"],
        sqlite_where=sa.text("state != 'ended'"),
        postgresql_where=sa.text("state != 'ended'"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("root", sa.String(length=32), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("layout", sa.String(length=100), nullable=False),
        sa.Column("dtype", sa.String(length=16)),
        sa.Column("save_seconds", sa.Float(), nullable=False),
        sa.Column("stall_seconds", sa.Float()),
        sa.Column("writers", sa.Integer()),
        sa.Column("write_seconds", sa.Float()),
        sa.Column("parent_id", sa.String(length=200)),
        sa.Column("metadata_digest", sa.String(length=32), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verified", sa.Boolean()),
        sa.Column("checked_at", sa.DateTime(timezone=True)),
        sa.Column("verification", sa.Text()),
        sa.Column("pinned_at", sa.DateTime(timezone=True)),
        sa.Column("pinned_by", sa.String(length=100)),
        sa.Column("deleting_since", sa.DateTime(timezone=True)),
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
    op.create_index("ix_checkpoints_attempt_id", "checkpoints", ["attempt_id"])
    op.create_table(
        "requests",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
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
        "operations",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("job_name", sa.String(length=80), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=200)),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("storage", sa.String(length=64)),
        sa.Column("node", sa.String(length=100)),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("failing", sa.Text()),
        sa.Column("not_before", sa.DateTime(timezone=True)),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("given_at", sa.DateTime(timezone=True)),
        sa.Column("waiting", sa.Text()),
        sa.Column("awaited_since", sa.DateTime(timezone=True)),
        sa.Column("last_report_at", sa.DateTime(timezone=True)),
        sa.Column("progress", sa.Text()),
        sa.Column("outcome", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_operations_state"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_operations"),
    )
    op.create_index("ix_operations_state_id", "operations", ["state", "id"])
    op.create_index("ix_operations_job_id_id", "operations", ["job_id", "id"])
    op.create_index("ix_operations_checkpoint_id_id", "operations", ["checkpoint_id", "id"])
    op.create_table(
        "packs",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("digest", sa.String(length=71)),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("token_id", sa.String(length=26)),
        sa.Column("named_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_packs"),
        sa.UniqueConstraint("digest", name="uq_packs_digest"),
    )
    op.create_index("ix_packs_named_at", "packs", ["named_at"])
    op.create_index("ix_packs_token_id", "packs", ["token_id"])
    op.create_table(
        "pack_blocks",
        sa.Column("pack_id", sa.String(length=26), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pack_id"], ["packs.id"], name="fk_pack_blocks_pack_id_packs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("pack_id", "number", name="pk_pack_blocks"),
    )
    op.create_table(
        "job_packs",
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("pack_id", sa.String(length=26), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_packs_job_id_jobs", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["pack_id"], ["packs.id"], name="fk_job_packs_pack_id_packs"),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_packs"),
    )
    op.create_index("ix_job_packs_pack_id", "job_packs", ["pack_id"])
    op.create_table(
        "shells",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("rank", sa.Integer()),
        sa.Column("argv", sa.Text(), nullable=False),
        sa.Column("terminal", sa.Text()),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("token_id", sa.String(length=26)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("client_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("failure", sa.Text()),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("output", sa.LargeBinary(), nullable=False),
        sa.Column("output_start", sa.BigInteger(), nullable=False),
        sa.Column("input", sa.LargeBinary(), nullable=False),
        sa.Column("input_start", sa.BigInteger(), nullable=False),
        sa.Column("input_ended", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_shells_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_shells"),
    )
    op.create_index("ix_shells_attempt_id_node", "shells", ["attempt_id", "node"])
    op.create_index("ix_shells_token_id", "shells", ["token_id"])
    op.create_table(
        "job_facts",
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_facts_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_facts"),
    )
    op.create_table(
        "config_words",
        sa.Column("word", sa.String(length=200), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_config_words_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("word", "job_id", name="pk_config_words"),
    )
    op.create_index("ix_config_words_job_id", "config_words", ["job_id"])
    op.create_table(
        "imports",
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_imports_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name="pk_imports"),
        sa.UniqueConstraint("digest", name="uq_imports_digest"),
    )
