"""Chores become operations: the table, its indexes, and the events about them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

FORMER, PRESENT = ("chores", "chore"), ("operations", "operation")
ID = sa.String(length=26)
TIME = sa.DateTime(timezone=True)
EVENTS = ("queued", "waiting", "started", "progress", "ended")


def upgrade() -> None:
    """Copy the rows into the table of the present name, and rename in the stored events."""
    _rename(FORMER, PRESENT)


def downgrade() -> None:
    """Do the reverse."""
    _rename(PRESENT, FORMER)


def _rename(old: tuple[str, str], new: tuple[str, str]) -> None:
    """Make the table anew: so its constraints have their names on SQLite too."""
    source, target = _table(old[0]), _create(new[0])
    names = [column.name for column in target.columns]
    op.execute(sa.insert(target).from_select(names, sa.select(source)))
    op.drop_table(old[0])
    for column in ("state", "job_id", "checkpoint_id"):
        op.create_index(f"ix_{new[0]}_{column}_id", new[0], [column, "id"])
    _rename_events(old[1], new[1])


def _rename_events(old: str, new: str) -> None:
    """Rename kinds, and the key of the id; within a JSON string its quotes would be escaped."""
    events = sa.table("events", sa.column("kind", sa.String), sa.column("data", sa.Text))
    for name in EVENTS:
        op.execute(
            sa.update(events)
            .where(events.c.kind == f"{old}_{name}")
            .values(
                kind=f"{new}_{name}",
                data=sa.func.replace(events.c.data, f'"{old}_id":', f'"{new}_id":'),
            )
        )


def _columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("job_name", sa.String(length=80), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=200)),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("storage", sa.String(length=64)),
        sa.Column("node", sa.String(length=100)),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("sent_at", TIME),
        sa.Column("given_at", TIME),
        sa.Column("waiting", sa.Text()),
        sa.Column("awaited_since", TIME),
        sa.Column("last_report_at", TIME),
        sa.Column("progress", sa.Text()),
        sa.Column("outcome", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("ended_at", TIME),
    ]


def _table(name: str) -> sa.Table:
    return sa.Table(name, sa.MetaData(), *_columns())


def _create(name: str) -> sa.Table:
    return op.create_table(
        name,
        *_columns(),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')",
            name=op.f(f"ck_{name}_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
    )
