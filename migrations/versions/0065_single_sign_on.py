"""Single sign-on: identities at the issuer, groups with roles, logins of devices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0065"
down_revision = "0064"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables; no existing session or token comes from the issuer."""
    _create_identities()
    _create_groups()
    _create_device_logins()
    for table in ("sessions", "tokens"):
        op.add_column(
            table,
            sa.Column("by_issuer", sa.Boolean(), nullable=False, server_default=sa.false()),
        )
    op.add_column("tokens", sa.Column("suspended_at", sa.DateTime(timezone=True)))
    op.add_column("sessions", sa.Column("issuer_session", sa.String(200)))
    op.create_index("ix_sessions_issuer_session", "sessions", ["issuer_session"])


def _create_identities() -> None:
    op.create_table(
        "identities",
        sa.Column("issuer", sa.String(500), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(26), nullable=False),
        sa.Column("refresh_token", sa.Text()),
        sa.Column("refresh_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_identities_user_id_users"),
        sa.PrimaryKeyConstraint("issuer", "subject", name="pk_identities"),
        sa.UniqueConstraint("user_id", name="uq_identities_user_id"),
    )
    op.create_index("ix_identities_refresh_at", "identities", ["refresh_at"])
    op.create_table(
        "pending_logins",
        sa.Column("state_hash", sa.String(64), nullable=False),
        sa.Column("cookie_hash", sa.String(64), nullable=False),
        sa.Column("next_path", sa.Text(), nullable=False),
        sa.Column("address", sa.String(100), nullable=False),
        sa.Column("session_id", sa.String(26)),
        sa.Column("invitation", sa.String(64)),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("state_hash", name="pk_pending_logins"),
    )
    _index_logins("pending_logins")


def _create_groups() -> None:
    op.create_table(
        "user_groups",
        sa.Column("user_id", sa.String(26), nullable=False),
        sa.Column("group_name", sa.String(200), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_user_groups_user_id_users"),
        sa.PrimaryKeyConstraint("user_id", "group_name", name="pk_user_groups"),
    )
    op.create_index("ix_user_groups_expires_at", "user_groups", ["expires_at"])
    op.create_table(
        "group_roles",
        sa.Column("project", sa.String(80), nullable=False),
        sa.Column("group_name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "role IN ('viewer', 'member', 'maintainer')", name=op.f("ck_group_roles_role")
        ),
        sa.ForeignKeyConstraint(
            ["project"],
            ["projects.name"],
            name="fk_group_roles_project_projects",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project", "group_name", name="pk_group_roles"),
    )
    op.create_index("ix_group_roles_group_name", "group_roles", ["group_name"])


def _create_device_logins() -> None:
    op.create_table(
        "device_logins",
        sa.Column("device_hash", sa.String(64), nullable=False),
        sa.Column("code_hash", sa.String(64), nullable=False),
        sa.Column("host", sa.String(100), nullable=False),
        sa.Column("address", sa.String(100), nullable=False),
        sa.Column("scopes", sa.Text()),
        sa.Column("lifetime_seconds", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("session_id", sa.String(26)),
        sa.Column("polled_at", sa.DateTime(timezone=True)),
        sa.Column("pause_seconds", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'approved', 'denied')", name=op.f("ck_device_logins_state")
        ),
        sa.PrimaryKeyConstraint("device_hash", name="pk_device_logins"),
        sa.UniqueConstraint("code_hash", name="uq_device_logins_code_hash"),
    )
    _index_logins("device_logins")


def _index_logins(table: str) -> None:
    op.create_index(f"ix_{table}_address_expires_at", table, ["address", "expires_at"])
    op.create_index(f"ix_{table}_expires_at", table, ["expires_at"])
