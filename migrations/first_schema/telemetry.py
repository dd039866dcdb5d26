"""Tables of reported data: artifacts, logs, metrics, stragglers, measured runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def create() -> None:
    """Create these tables with their indexes."""
    op.create_table(
        "artifact_contents",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("job_id", sa.String(length=26)),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("stored", sa.BigInteger(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("media_type", sa.String(length=40)),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_artifact_contents_job_id_jobs", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_artifact_contents"),
        sa.UniqueConstraint("job_id", "digest", name="uq_artifact_contents_job_id_digest"),
    )
    op.create_table(
        "artifact_blocks",
        sa.Column("content_id", sa.String(length=26), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["content_id"],
            ["artifact_contents.id"],
            name="fk_artifact_blocks_content_id_artifact_contents",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("content_id", "number", name="pk_artifact_blocks"),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("process", sa.Integer()),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("step", sa.BigInteger()),
        sa.Column("caption", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("content_id", sa.String(length=26)),
        sa.Column("histogram", sa.Text()),
        sa.ForeignKeyConstraint(
            ["content_id"],
            ["artifact_contents.id"],
            name="fk_artifacts_content_id_artifact_contents",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_artifacts_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
    )
    op.create_index("ix_artifacts_job_id_kind", "artifacts", ["job_id", "kind", "id"])
    op.create_index("ix_artifacts_content_id", "artifacts", ["content_id"])
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id", "id"])
    op.create_table(
        "logs",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
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
        "log_blocks",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
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
        "metric_series",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=268), nullable=False),
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
        "metric_chunks",
        sa.Column(
            "series_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("first_step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("non_finite", sa.Integer(), nullable=False),
        sa.Column("min", sa.Float()),
        sa.Column("max", sa.Float()),
        sa.Column("last", sa.Float()),
        sa.Column("step_sum", sa.Float()),
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
        "metric_tails",
        sa.Column(
            "series_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("last_step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("points", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"],
            ["metric_series.id"],
            name="fk_metric_tails_series_id_metric_series",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("series_id", "last_step", name="pk_metric_tails"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "step_digests",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
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
        "rank_steps",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("staged_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_rank_steps_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "step", name="pk_rank_steps"),
    )
    op.create_table(
        "rank_progress",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_rank_progress_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name="pk_rank_progress"),
    )
    op.create_table(
        "stragglers",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("factor", sa.Float(), nullable=False),
        sa.Column("share", sa.Float(), nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("gone_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name="fk_stragglers_attempt_id_attempts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", "step", name="pk_stragglers"),
    )
    op.create_index("ix_stragglers_node_found_at", "stragglers", ["node", "found_at"])
    op.create_table(
        "measured_runs",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("device_name", sa.String(length=200), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=26)),
        sa.Column("submitter", sa.String(length=100)),
        sa.Column("node", sa.String(length=100)),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_measured_runs"),
    )
    op.create_index("ix_measured_runs_ended_at", "measured_runs", ["ended_at"])
    op.create_index(
        "ix_measured_runs_device_device_name", "measured_runs", ["device", "device_name"]
    )
    op.create_table(
        "calibrations",
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("device_name", sa.String(length=200), nullable=False),
        sa.Column("fitted", sa.Text(), nullable=False),
        sa.Column("fitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("device", "device_name", name="pk_calibrations"),
    )
