"""Runs that other tools recorded become jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tool to jobs, and the table of what was imported."""
    op.add_column("jobs", sa.Column("imported_from", sa.String(length=16)))
    op.create_table(
        "imports",
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_imports_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name="pk_imports"),
        sa.UniqueConstraint("digest", name="uq_imports_digest"),
    )


def downgrade() -> None:
    """Drop them; imported runs stay as jobs of programs that have ended."""
    op.execute("UPDATE attempts SET cause = 'submit' WHERE cause = 'import'")
    op.execute("DELETE FROM events WHERE kind = 'imported'")
    op.drop_table("imports")
    op.drop_column("jobs", "imported_from")
