"""The audit log: rows that wait for their number, the chain, its anchors and positions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0067"
down_revision = "0066"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
SEARCHED = ("user", "token_id", "operation", "object", "project", "outcome")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "audit_pending",
        sa.Column("id", ROW_ID, nullable=False, autoincrement=True),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_pending"),
    )
    op.create_table(
        "audit_log",
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("operation", sa.String(80), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("count", sa.Integer()),
        sa.Column("user", sa.String(100)),
        sa.Column("user_id", sa.String(26)),
        sa.Column("token", sa.String(100)),
        sa.Column("token_id", sa.String(26)),
        sa.Column("session_id", sa.String(26)),
        sa.Column("break_glass", sa.Boolean()),
        sa.Column("address", sa.String(100)),
        sa.Column("object", sa.String(300)),
        sa.Column("project", sa.String(80)),
        sa.Column("before", sa.Text()),
        sa.Column("after", sa.Text()),
        sa.Column("request_id", sa.String(64)),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.CheckConstraint(
            "outcome IN ('changed', 'read', 'refused')", name=op.f("ck_audit_log_outcome")
        ),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at"])
    for column in SEARCHED:
        op.create_index(f"ix_audit_log_{column}", "audit_log", [column, "seq"])
    op.create_table(
        "audit_anchors",
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("last_anchor", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_anchors"),
    )
    op.create_table(
        "audit_marks",
        sa.Column("name", sa.String(20), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("digest", sa.String(64)),
        sa.Column("last_anchor", sa.BigInteger()),
        sa.Column("signature", sa.String(64)),
        sa.Column("problem", sa.Text()),
        sa.PrimaryKeyConstraint("name", name="pk_audit_marks"),
    )
