"""Secrets of projects and users, and the versions that an attempt gets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables; existing attempts have no secrets."""
    op.create_table(
        "secrets",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("project", sa.String(80)),
        sa.Column("user_id", sa.String(26)),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("(project IS NULL) != (user_id IS NULL)", name=op.f("ck_secrets_owner")),
        sa.ForeignKeyConstraint(
            ["project"], ["projects.name"], name="fk_secrets_project_projects", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_secrets_user_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_secrets"),
        sa.UniqueConstraint("project", "name", name="uq_secrets_project_name"),
        sa.UniqueConstraint("user_id", "name", name="uq_secrets_user_id_name"),
    )
    op.create_table(
        "secret_versions",
        sa.Column("secret_id", sa.String(26), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("ciphertext", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.ForeignKeyConstraint(
            ["secret_id"],
            ["secrets.id"],
            name="fk_secret_versions_secret_id_secrets",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("secret_id", "version", name="pk_secret_versions"),
    )
    op.add_column("attempts", sa.Column("secrets", sa.Text))
