"""The demand of a group has the units in which its slots are placed."""

from __future__ import annotations

from migrations.queue_groups import drop_groups

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Store the reason of each group in its jobs; the next round makes the groups anew."""
    drop_groups()


def downgrade() -> None:
    """Do the same: the former version cannot read these groups."""
    drop_groups()
