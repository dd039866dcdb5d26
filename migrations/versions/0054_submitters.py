"""Jobs, commands and packs have the token that made them; attempts that others must not trust."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

tokens = sa.table("tokens", *map(sa.column, ("id", "name", "kind")))
WITH_TOKEN = ("jobs", "shells", "packs")
RUN_OF = (("job_id", 26), ("submitter", 100), ("node", 100))


def upgrade() -> None:
    """Add the columns. Attempts of before are not trusted, and rows of a name that several had."""
    for table in WITH_TOKEN:
        op.add_column(table, sa.Column("token_id", sa.String(26)))
    for table in WITH_TOKEN:
        op.execute(_of_one_token(sa.table(table, sa.column("created_by"), sa.column("token_id"))))
    op.create_index("ix_shells_token_id", "shells", ["token_id"])
    op.drop_index("ix_packs_created_by", "packs")
    op.create_index("ix_packs_token_id", "packs", ["token_id"])
    for name, length in RUN_OF:
        op.add_column("measured_runs", sa.Column(name, sa.String(length)))
    op.add_column(
        "attempts", sa.Column("tainted", sa.Boolean(), nullable=False, server_default="1")
    )


def _of_one_token(table: sa.TableClause) -> sa.Update:
    """Return the statement that gives rows the token of their name, where only one had it."""
    named = (tokens.c.name == table.c.created_by) & tokens.c.kind.in_(("api", "admin"))
    of_name = sa.select(sa.func.min(tokens.c.id)).where(named)
    once = of_name.having(sa.func.count() == 1).scalar_subquery()
    return sa.update(table).values(token_id=once)


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("attempts", "tainted")
    for name, _ in RUN_OF:
        op.drop_column("measured_runs", name)
    op.drop_index("ix_packs_token_id", "packs")
    op.create_index("ix_packs_created_by", "packs", ["created_by"])
    op.drop_index("ix_shells_token_id", "shells")
    for table in WITH_TOKEN:
        op.drop_column(table, "token_id")
