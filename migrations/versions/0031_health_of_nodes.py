"""Nodes have labels, withheld slots and reasons of drains; demands have selectors."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations.queue_groups import drop_groups
from migrations.stored_specs import forget_fields

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

ADDED = ("node_selector", "exclude_nodes")
"""Fields of the section `resources` that came with this revision."""
OBJECTS = ("worker_labels", "set_labels", "withheld")
events = sa.table("events", sa.column("kind"))
nodes = sa.table("nodes", *(sa.column(name) for name in ("name", "hardware", "drain", "sample")))


def upgrade() -> None:
    """Add the columns and an index of ended attempts.

    The next round of the scheduler makes the groups anew, and the next heartbeats bring samples,
    whose Xid errors have an age now.
    """
    for name in OBJECTS:
        op.add_column("nodes", sa.Column(name, sa.Text(), nullable=False, server_default="{}"))
    op.add_column("nodes", sa.Column("trusted_since", sa.DateTime(timezone=True)))
    op.create_index("ix_attempts_ended_at", "attempts", ["ended_at"])
    op.execute(sa.update(nodes).values(sample=None))
    drop_groups()


def downgrade() -> None:
    """Drop them, and what the former version cannot read.

    Stored specs lose their selectors, and a cordoned node stays drained, without its reasons. A
    slot whose device is gone is an ordinary one for the former version, until its worker registers
    again.
    """
    forget_fields(ADDED, section="resources")
    connection = op.get_bind()
    for row in connection.execute(sa.select(nodes)).all():
        hardware: dict[str, Any] = json.loads(row.hardware)
        for device in hardware.get("accelerators", ()):
            device.pop("listed", None)
        drain = None if row.drain is None else json.loads(row.drain)
        if drain is not None:
            drain.pop("reasons", None)
        changed = sa.update(nodes).where(nodes.c.name == row.name)
        values = {"hardware": json.dumps(hardware), "drain": drain and json.dumps(drain)}
        connection.execute(changed.values(sample=None, **values))
    op.execute(sa.delete(events).where(events.c.kind == "node_labeled"))
    op.drop_index("ix_attempts_ended_at", "attempts")
    for name in ("trusted_since", *reversed(OBJECTS)):
        op.drop_column("nodes", name)
    drop_groups()
