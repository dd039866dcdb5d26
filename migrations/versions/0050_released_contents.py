"""Contents of artifacts outlive their job until they are deleted, and the list has an index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

KEY = "fk_artifact_contents_job_id_jobs"
COLUMN = "job_id VARCHAR(26)"
"""As SQLite stores the schema of the table."""
contents = sa.table("artifact_contents", sa.column("job_id"))


def upgrade() -> None:
    """Let contents belong to no job."""
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id", "id"])
    if op.get_bind().dialect.name == "sqlite":
        _rewrite((f"{COLUMN} NOT NULL", COLUMN), ("ON DELETE CASCADE", "ON DELETE SET NULL"))
        return
    op.alter_column("artifact_contents", "job_id", nullable=True)
    _refer("SET NULL")


def downgrade() -> None:
    """Delete contents without a job."""
    op.execute(sa.delete(contents).where(contents.c.job_id.is_(None)))
    if op.get_bind().dialect.name == "sqlite":
        _rewrite((COLUMN, f"{COLUMN} NOT NULL"), ("ON DELETE SET NULL", "ON DELETE CASCADE"))
    else:
        op.alter_column("artifact_contents", "job_id", nullable=False)
        _refer("CASCADE")
    op.drop_index("ix_artifacts_job_id", "artifacts")


def _refer(deletion: str) -> None:
    op.drop_constraint(KEY, "artifact_contents", type_="foreignkey")
    op.create_foreign_key(KEY, "artifact_contents", "jobs", ["job_id"], ["id"], ondelete=deletion)


def _rewrite(*changes: tuple[str, str]) -> None:
    """Replace words of the table's schema.

    SQLite has no statement for it. To write the table anew would delete the blocks that refer to
    it, so the stored schema is changed, as sqlite.org/lang_altertable.html describes.
    """
    connection = op.get_bind()
    schema = sa.table("sqlite_master", *map(sa.column, ("name", "type", "sql")))
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    text: sa.ColumnElement[str] = schema.c.sql
    for former, word in changes:
        text = sa.func.replace(text, former, word)
    table = (schema.c.name == "artifact_contents") & (schema.c.type == "table")
    op.execute(sa.update(schema).where(table).values(sql=text))
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
