"""The first schema.

The former migrations created the same schema at their revision 0059. A database at that revision
already has these tables.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from migrations.first_schema import cluster, jobs, telemetry

revision = "0059"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables, and the rows that the server expects."""
    cluster.create()
    jobs.create()
    telemetry.create()
    projects = sa.table(
        "projects",
        *map(sa.column, ("name", "description", "weight", "created_by")),
        sa.column("created_at", sa.DateTime(timezone=True)),
    )
    default = {
        "name": "default",
        "description": "Jobs that name no project",
        "weight": 1.0,
        "created_by": "server",
        "created_at": datetime.now(UTC),
    }
    op.bulk_insert(projects, [default])
    op.bulk_insert(
        sa.table("deleted_notices", *map(sa.column, ("id", "last_seq"))), [{"id": 1, "last_seq": 0}]
    )
