"""Members with roles; projects of events, operations and imports; uploaders of packs.

Stored texts of earlier versions name jobs of any project, so they are replaced.
"""

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
    op.create_index("ix_operations_project_id", "operations", ["project", "id"])
    _add_project_to_imports()
    _retire_names()
    _replace_texts_with_names()


def _add_project_to_imports() -> None:
    """Make the digest of an import unique within its project."""
    with op.batch_alter_table("imports") as batch:
        batch.add_column(sa.Column("project", sa.String(80)))
    jobs = sa.table("jobs", sa.column("id"), sa.column("project"))
    imports = sa.table("imports", sa.column("job_id"), sa.column("project"))
    of_job = sa.select(jobs.c.project).where(jobs.c.id == imports.c.job_id).scalar_subquery()
    op.execute(sa.update(imports).values(project=of_job))
    with op.batch_alter_table("imports") as batch:
        batch.alter_column("project", existing_type=sa.String(80), nullable=False)
        batch.drop_constraint("uq_imports_digest", type_="unique")
        batch.create_unique_constraint("uq_imports_project_digest", ["project", "digest"])


def _retire_names() -> None:
    """Retire the names of deleted projects, as far as slot times still have them."""
    op.create_table(
        "retired_projects",
        sa.Column("name", sa.String(80), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_retired_projects"),
    )
    retired = sa.table("retired_projects", sa.column("name"))
    projects = sa.table("projects", sa.column("name"))
    holdings = sa.table("holdings", sa.column("project"))
    present = sa.select(projects.c.name)
    gone = sa.select(holdings.c.project).where(holdings.c.project.not_in(present)).distinct()
    op.execute(sa.insert(retired).from_select(["name"], gone))


def _replace_texts_with_names() -> None:
    """Replace texts that name jobs; the next round of the scheduler computes the reasons again."""
    jobs = sa.table("jobs", sa.column("state"), sa.column("reason"))
    op.execute(sa.update(jobs).where(jobs.c.state == "queued").values(reason=None))
    demands = sa.table("demands", sa.column("reason"))
    op.execute(sa.update(demands).values(reason=None))
    requests = sa.table("node_requests", sa.column("caused_by"), sa.column("by_person", sa.Boolean))
    by_queue = sa.update(requests).where(requests.c.by_person.is_(sa.false()))
    op.execute(by_queue.values(caused_by="a job from before the upgrade"))
