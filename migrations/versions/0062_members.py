"""Members of projects with roles; the project of events and operations; uploaders of packs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None

SEARCHED = ["id", "state", "project", "name", "tags"]


def upgrade() -> None:
    """Create the tables; every active person becomes a member of the project `default`."""
    op.create_table(
        "members",
        sa.Column("project", sa.String(80), nullable=False),
        sa.Column("user_id", sa.String(26), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "role IN ('viewer', 'member', 'maintainer')", name=op.f("ck_members_role")
        ),
        sa.ForeignKeyConstraint(
            ["project"],
            ["projects.name"],
            name="fk_members_project_projects",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_members_user_id_users"),
        sa.PrimaryKeyConstraint("project", "user_id", name="pk_members"),
    )
    op.create_index("ix_members_user_id", "members", ["user_id"])
    op.create_table(
        "pack_uploaders",
        sa.Column("pack_id", sa.String(26), nullable=False),
        sa.Column("user_id", sa.String(26), nullable=False),
        sa.ForeignKeyConstraint(
            ["pack_id"], ["packs.id"], name="fk_pack_uploaders_pack_id_packs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("pack_id", "user_id", name="pk_pack_uploaders"),
    )
    op.add_column("projects", sa.Column("everyone", sa.String(16)))
    projects = sa.table("projects", sa.column("name"), sa.column("everyone"))
    is_default = projects.c.name == "default"
    op.execute(sa.update(projects).where(is_default).values(everyone="member"))
    kind = sa.Column("kind", sa.String(16), nullable=False, server_default="person")
    op.add_column("users", kind)
    op.add_column("users", sa.Column("project", sa.String(80)))
    op.add_column("events", sa.Column("project", sa.String(80)))
    op.add_column("operations", sa.Column("project", sa.String(80)))
    jobs = sa.table("jobs", sa.column("id"), sa.column("project"))
    operations = sa.table("operations", sa.column("job_id"), sa.column("project"))
    of_job = sa.select(jobs.c.project).where(jobs.c.id == operations.c.job_id).scalar_subquery()
    op.execute(sa.update(operations).values(project=of_job))
    op.drop_index("ix_jobs_search", "jobs")
    op.create_index("ix_jobs_search", "jobs", SEARCHED)
    op.create_index("ix_jobs_project_state_id", "jobs", ["project", "state", "id"])
