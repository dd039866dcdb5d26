"""The token that made a token."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0063"
down_revision = "0062"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; earlier tokens have no known maker."""
    op.add_column("tokens", sa.Column("maker_token_id", sa.String(26)))
    op.create_index("ix_tokens_maker_token_id", "tokens", ["maker_token_id"])
