"""Images, histograms and files that attempts log have tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.stored_specs import forget_fields

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "artifact_contents",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("stored", sa.BigInteger(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("media_type", sa.String(length=40)),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_artifact_contents_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_artifact_contents"),
        sa.UniqueConstraint("job_id", "digest", name="uq_artifact_contents_job_id_digest"),
    )
    op.create_table(
        "artifact_blocks",
        sa.Column("content_id", sa.String(length=26), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
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
            ["job_id"], ["jobs.id"], name="fk_artifacts_job_id_jobs", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["content_id"],
            ["artifact_contents.id"],
            name="fk_artifacts_content_id_artifact_contents",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
    )
    op.create_index("ix_artifacts_job_id_kind", "artifacts", ["job_id", "kind", "id"])
    op.create_index("ix_artifacts_content_id", "artifacts", ["content_id"])


def downgrade() -> None:
    """Drop them with their content, and the field of specs that the former version refuses."""
    forget_fields({"artifacts"}, section="program")
    op.execute("DELETE FROM events WHERE kind = 'output_dropped'")
    op.execute("DELETE FROM notices WHERE kind = 'artifacts'")
    op.drop_table("artifacts")
    op.drop_table("artifact_blocks")
    op.drop_table("artifact_contents")
