"""Packs of code have tables, and jobs name them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "packs",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("digest", sa.String(length=71)),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("named_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_packs"),
        sa.UniqueConstraint("digest", name="uq_packs_digest"),
    )
    op.create_index("ix_packs_created_by", "packs", ["created_by"])
    op.create_index("ix_packs_named_at", "packs", ["named_at"])
    op.create_table(
        "pack_blocks",
        sa.Column("pack_id", sa.String(length=26), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
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


def downgrade() -> None:
    """Drop them."""
    op.drop_table("job_packs")
    op.drop_table("pack_blocks")
    op.drop_table("packs")
