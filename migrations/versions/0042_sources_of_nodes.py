"""Sources of nodes, requests for nodes, and the pilots that become nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

STATES = ("wanted", "pending", "running", "leaving", "ended")
EVENTS = ("source_changed", "nodes_requested", "nodes_released")
events, tokens = (sa.table(name, sa.column("kind")) for name in ("events", "tokens"))


def upgrade() -> None:
    """Create the tables; every node so far takes its messages from the broker."""
    op.create_table(
        "sources",
        sa.Column("name", sa.String(31), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("request_seconds", sa.Float()),
        sa.Column("idle_seconds", sa.Float(), nullable=False),
        sa.Column("leave_seconds", sa.Float(), nullable=False),
        sa.Column("check_addresses", sa.Boolean(), nullable=False),
        sa.Column("version", sa.String(50), nullable=False),
        sa.Column("heard_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_away", sa.Boolean(), nullable=False, server_default="0"),
        sa.Column("listed_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text()),
        sa.Column("needs_login", sa.Text()),
        sa.Column("paused_at", sa.DateTime(timezone=True)),
        sa.Column("paused_by", sa.String(100)),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_sources"),
    )
    _create_requests()
    op.create_table(
        "pilots",
        sa.Column("request_id", sa.String(26), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("named", sa.String(200)),
        sa.Column("host", sa.String(255), nullable=False, server_default=""),
        sa.Column("addresses", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("joined", sa.String(200)),
        sa.Column("joined_at", sa.DateTime(timezone=True)),
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
    op.add_column(
        "nodes", sa.Column("inbox", sa.String(8), nullable=False, server_default="broker")
    )
    op.add_column("nodes", sa.Column("request_id", sa.String(26)))
    op.add_column("nodes", sa.Column("ends_at", sa.DateTime(timezone=True)))
    op.create_index("ix_nodes_request_id", "nodes", ["request_id"])
    op.add_column("tokens", sa.Column("source", sa.String(31)))


def _create_requests() -> None:
    op.create_table(
        "node_requests",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("source", sa.String(31), nullable=False),
        sa.Column("purpose", sa.String(8), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float()),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("caused_by", sa.Text(), nullable=False),
        sa.Column("by_person", sa.Boolean(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True)),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("sends", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("cancel_at", sa.DateTime(timezone=True)),
        sa.Column("cancel_sent_at", sa.DateTime(timezone=True)),
        sa.Column("ask", sa.String(8)),
        sa.Column("ref", sa.String(200)),
        sa.Column("engine_state", sa.String(16), nullable=False, server_default="unknown"),
        sa.Column("unknown_since", sa.DateTime(timezone=True)),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("explanation", sa.Text()),
        sa.Column("starts_at", sa.DateTime(timezone=True)),
        sa.Column("ends_at", sa.DateTime(timezone=True)),
        sa.Column("results", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            f"state IN ({', '.join(map(repr, STATES))})", name=op.f("ck_node_requests_state")
        ),
        sa.ForeignKeyConstraint(
            ["source"],
            ["sources.name"],
            name="fk_node_requests_source_sources",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_node_requests"),
    )
    op.create_index("ix_node_requests_source_id", "node_requests", ["source", "id"])
    op.create_index("ix_node_requests_ended_at", "node_requests", ["ended_at"])
    is_open = sa.text("state != 'ended'")
    op.create_index(
        "ix_node_requests_open",
        "node_requests",
        ["source"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )


def downgrade() -> None:
    """Drop them, with the tokens and events whose kind the former version lacks."""
    op.execute(sa.delete(tokens).where(tokens.c.kind == "source"))
    op.execute(sa.delete(events).where(events.c.kind.in_(EVENTS)))
    op.drop_column("tokens", "source")
    op.drop_index("ix_nodes_request_id", "nodes")
    for name in ("ends_at", "request_id", "inbox"):
        op.drop_column("nodes", name)
    for table in ("pilots", "node_requests", "sources"):
        op.drop_table(table)
