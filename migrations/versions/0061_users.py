"""Users with passwords, sessions and invitations; the built-in user owns all that exists."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None

ADMIN_USER_ID = "0" * 25 + "1"
OF_PERSONS = ("admin", "api", "join", "login")


def upgrade() -> None:
    """Create the tables of users, and give existing rows to the built-in user."""
    users = _create_users()
    created_at = datetime.now(UTC).replace(tzinfo=None)
    if op.get_bind().dialect.name != "sqlite":
        created_at = created_at.replace(tzinfo=UTC)
    admin = {"id": ADMIN_USER_ID, "name": "admin", "role": "admin", "state": "active"}
    op.bulk_insert(users, [admin | {"created_at": created_at}])
    _create_invitations()
    op.add_column("tokens", sa.Column("user_id", sa.String(26)))
    op.create_index("ix_tokens_user_id_id", "tokens", ["user_id", "id"])
    tokens = sa.table("tokens", sa.column("user_id"), sa.column("kind"))
    of_persons = sa.update(tokens).where(tokens.c.kind.in_(OF_PERSONS))
    op.execute(of_persons.values(user_id=ADMIN_USER_ID))
    _replace_sessions()
    op.drop_table("failed_logins")
    op.create_table(
        "failed_logins",
        sa.Column("key", sa.String(120), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_failed_logins"),
    )
    owner = sa.Column("owner_id", sa.String(26), nullable=False, server_default=ADMIN_USER_ID)
    op.add_column("jobs", owner)
    op.create_index("ix_jobs_owner_id_id", "jobs", ["owner_id", "id"])
    op.add_column("shells", sa.Column("user_id", sa.String(26)))
    op.add_column("shells", sa.Column("session_id", sa.String(26)))
    op.create_index("ix_shells_user_id", "shells", ["user_id"])
    op.create_index("ix_shells_session_id", "shells", ["session_id"])
    op.add_column("packs", sa.Column("user_id", sa.String(26)))
    op.create_index("ix_packs_user_id", "packs", ["user_id"])
    op.add_column("events", sa.Column("user_name", sa.String(64)))


def _create_users() -> sa.Table:
    return op.create_table(
        "users",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("email", sa.String(254)),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("password", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("role IN ('user', 'operator', 'admin')", name=op.f("ck_users_role")),
        sa.CheckConstraint("state IN ('active', 'disabled')", name=op.f("ck_users_state")),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
    )


def _create_invitations() -> None:
    op.create_table(
        "invitations",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(26), nullable=False),
        sa.Column("maker_id", sa.String(26), nullable=False),
        sa.Column("maker_token_id", sa.String(26)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_invitations_user_id_users"),
        sa.ForeignKeyConstraint(["maker_id"], ["users.id"], name="fk_invitations_maker_id_users"),
        sa.PrimaryKeyConstraint("hash", name="pk_invitations"),
    )
    for column in ("user_id", "maker_id", "maker_token_id"):
        op.create_index(f"ix_invitations_{column}", "invitations", [column])


def _replace_sessions() -> None:
    """Create the table anew, because SQLite cannot drop NOT NULL of a column."""
    columns = ("hash", "token_id", "created_at", "expires_at")
    former = sa.table("sessions", *map(sa.column, columns))
    rows = op.get_bind().execute(sa.select(former)).mappings().all()
    op.drop_table("sessions")
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("user_id", sa.String(26), nullable=False),
        sa.Column("token_id", sa.String(26)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.Column("address", sa.String(100)),
        sa.Column("browser", sa.String(200)),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_sessions_user_id_users"),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name="fk_sessions_token_id_tokens", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("hash", name="pk_sessions"),
        sa.UniqueConstraint("id", name="uq_sessions_id"),
    )
    op.create_index("ix_sessions_user_id_id", "sessions", ["user_id", "id"])
    op.create_index("ix_sessions_token_id", "sessions", ["token_id"])
    if rows:
        plain = sa.table("sessions", *map(sa.column, (*columns, "id", "user_id")))
        # Hexadecimal digits are digits of an id; the first digit of an id is below 8.
        new = [{**row, "id": f"0{row['hash'][:25]}", "user_id": ADMIN_USER_ID} for row in rows]
        op.get_bind().execute(sa.insert(plain), new)
