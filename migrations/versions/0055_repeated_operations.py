"""Operations that fail are repeated: those that failed before this version are queued again."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

operations = sa.table(
    "operations",
    *map(sa.column, ("id", "kind", "state", "checkpoint_id", "outcome", "failing", "node")),
    sa.column("ended_at", sa.DateTime(timezone=True)),
    sa.column("created_at", sa.DateTime(timezone=True)),
)
checkpoints = sa.table("checkpoints", sa.column("id"), sa.column("deleting_since"))


def upgrade() -> None:
    """Add the columns, and queue each deletion that has failed again."""
    op.add_column("operations", sa.Column("failing", sa.Text(), nullable=True))
    op.add_column("operations", sa.Column("not_before", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_checkpoints_attempt_id", "checkpoints", ["attempt_id"])
    _queue_failed_deletions()


def downgrade() -> None:
    """Drop them; what waits for another try is due at once."""
    op.drop_index("ix_checkpoints_attempt_id", "checkpoints")
    op.drop_column("operations", "not_before")
    op.drop_column("operations", "failing")


def _in_utc(at: datetime) -> datetime:
    """Return a time with its zone, which SQLite does not store."""
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _queue_failed_deletions() -> None:
    """Queue those whose files may still lie on storage; of a job that is gone, all of them."""
    connection, table = op.get_bind(), operations.c
    other = operations.alias()
    newer = sa.exists().where(
        other.c.checkpoint_id == table.checkpoint_id,
        other.c.kind == "delete",
        other.c.id > table.id,
    )
    marked = sa.exists().where(
        checkpoints.c.id == table.checkpoint_id, checkpoints.c.deleting_since.is_not(None)
    )
    failed = sa.select(table.id, table.outcome, table.ended_at, table.created_at).where(
        table.kind == "delete",
        table.state == "failed",
        sa.or_(table.checkpoint_id.is_(None), marked & ~newer),
    )
    for row in connection.execute(failed).all():
        outcome = row.outcome if isinstance(row.outcome, str) else json.dumps(row.outcome)
        found = json.loads(outcome) if row.outcome else {}
        failing = {
            "count": 1,
            "since": _in_utc(row.ended_at or row.created_at).isoformat(),
            "reason": found.get("message", "a former version did not repeat it"),
            "next_at": None,
        }
        again = {"state": "queued", "ended_at": None, "outcome": None, "node": None}
        this = sa.update(operations).where(table.id == row.id)
        connection.execute(this.values(failing=json.dumps(failing), **again))
