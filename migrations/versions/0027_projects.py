"""Each job belongs to a project, which has a weight and quotas."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from migrations.stored_specs import forget_fields

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

events = sa.table("events", sa.column("kind"))


def upgrade() -> None:
    """Make the tables; all jobs of before belong to the project `default`."""
    projects = op.create_table(
        "projects",
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("max_slots", sa.Integer()),
        sa.Column("slot_hours_per_month", sa.Float()),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    default = {
        "name": "default",
        "description": "Jobs that name no project",
        "weight": 1.0,
        "created_by": "server",
        "created_at": datetime.now(UTC),
    }
    op.bulk_insert(projects, [default])
    op.create_table(
        "project_usage",
        sa.Column("project", sa.String(80), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("slot_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "month", name="pk_project_usage"),
    )
    project = sa.Column("project", sa.String(80), nullable=False, server_default="default")
    op.add_column("jobs", project)
    op.create_index("ix_jobs_project_id", "jobs", ["project", "id"])


def downgrade() -> None:
    """Drop all of it, and what the former version cannot read: events and a field of specs."""
    forget_fields(("project",))
    op.execute(sa.delete(events).where(events.c.kind == "project_changed"))
    op.drop_index("ix_jobs_project_id", "jobs")
    op.drop_column("jobs", "project")
    op.drop_table("project_usage")
    op.drop_table("projects")
