"""Scopes of API tokens; the tokens that exist have none, and keep all their permissions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column `scopes`."""
    op.add_column("tokens", sa.Column("scopes", sa.Text()))
