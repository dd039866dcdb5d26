"""Attempts reserve spare nodes: shares without ranks, in a state of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.queue_groups import drop_groups
from migrations.sqlite_schema import replace_in_schema
from migrations.stored_specs import forget_fields

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

FORMER_STATES = ("placed", "claimed", "running", "ended")
STATES = ("placed", "claimed", "running", "spare", "ended")
QUEUE = ("state", "demand", "priority", "queued_at", "id", "project", "world_size")
NUMBERS = ("spare_nodes", "spare_slots")
"""Columns of jobs."""
KEY = ["attempt_id", "node", "since"]
"""Of holdings: an attempt may reserve a spare node twice."""
attempt_nodes = sa.table("attempt_nodes", sa.column("state"))
holdings = sa.table("holdings", sa.column("spare"))


def upgrade() -> None:
    """Add the columns and the state; no attempt so far has a spare node."""
    drop_groups()
    for name in NUMBERS:
        op.add_column("jobs", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempt_nodes", sa.Column("spare_since", sa.DateTime(timezone=True)))
    with op.batch_alter_table("holdings") as batch:
        batch.add_column(
            sa.Column("spare", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        batch.drop_constraint("pk_holdings", type_="primary")
        batch.create_primary_key("pk_holdings", KEY)
    op.drop_index("ix_jobs_queue", "jobs")
    op.create_index("ix_jobs_queue", "jobs", [*QUEUE, "spare_slots"])
    _allow(STATES, before=FORMER_STATES)


def downgrade() -> None:
    """Drop them, the field of stored specs, and the shares of spare nodes.

    The former version takes each share for one with ranks.
    """
    drop_groups()
    forget_fields(("spare_nodes",), section="resources")
    op.execute(sa.delete(attempt_nodes).where(attempt_nodes.c.state == "spare"))
    op.execute(sa.delete(holdings).where(holdings.c.spare))
    _allow(FORMER_STATES, before=STATES)
    op.drop_index("ix_jobs_queue", "jobs")
    op.create_index("ix_jobs_queue", "jobs", QUEUE)
    with op.batch_alter_table("holdings") as batch:
        batch.drop_column("spare")
        batch.drop_constraint("pk_holdings", type_="primary")
        batch.create_primary_key("pk_holdings", KEY[:2])
    op.drop_column("attempt_nodes", "spare_since")
    for name in NUMBERS:
        op.drop_column("jobs", name)


def _allow(states: tuple[str, ...], *, before: tuple[str, ...]) -> None:
    """Replace the states that a share may have."""
    condition, former = (f"state IN ({', '.join(map(repr, each))})" for each in (states, before))
    if op.get_bind().dialect.name == "sqlite":
        replace_in_schema("attempt_nodes", (former, condition))
    else:
        op.drop_constraint(op.f("ck_attempt_nodes_state"), "attempt_nodes")
        op.create_check_constraint(op.f("ck_attempt_nodes_state"), "attempt_nodes", condition)
