"""Contents of artifacts outlive their job until they are deleted, and the list has an index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.sqlite_schema import replace_in_schema

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

KEY = "fk_artifact_contents_job_id_jobs"
TABLE = "artifact_contents"
COLUMN = "job_id VARCHAR(26)"
"""As SQLite stores the schema of the table."""
contents = sa.table(TABLE, sa.column("job_id"))


def upgrade() -> None:
    """Let contents belong to no job."""
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id", "id"])
    if op.get_bind().dialect.name == "sqlite":
        replace_in_schema(
            TABLE, (f"{COLUMN} NOT NULL", COLUMN), ("ON DELETE CASCADE", "ON DELETE SET NULL")
        )
        return
    op.alter_column(TABLE, "job_id", nullable=True)
    _refer("SET NULL")


def downgrade() -> None:
    """Delete contents without a job."""
    op.execute(sa.delete(contents).where(contents.c.job_id.is_(None)))
    if op.get_bind().dialect.name == "sqlite":
        replace_in_schema(
            TABLE, (COLUMN, f"{COLUMN} NOT NULL"), ("ON DELETE SET NULL", "ON DELETE CASCADE")
        )
    else:
        op.alter_column(TABLE, "job_id", nullable=False)
        _refer("CASCADE")
    op.drop_index("ix_artifacts_job_id", "artifacts")


def _refer(deletion: str) -> None:
    op.drop_constraint(KEY, TABLE, type_="foreignkey")
    op.create_foreign_key(KEY, TABLE, "jobs", ["job_id"], ["id"], ondelete=deletion)
