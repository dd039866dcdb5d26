"""Measured runs of each kind of hardware, and the coefficients fitted to them, have tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "measured_runs",
        sa.Column("attempt_id", sa.String(length=26), nullable=False),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("device_name", sa.String(length=200), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_measured_runs"),
    )
    op.create_index("ix_measured_runs_ended_at", "measured_runs", ["ended_at"])
    op.create_index(
        "ix_measured_runs_device_device_name", "measured_runs", ["device", "device_name"]
    )
    op.create_table(
        "calibrations",
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("device_name", sa.String(length=200), nullable=False),
        sa.Column("fitted", sa.Text(), nullable=False),
        sa.Column("fitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("device", "device_name", name="pk_calibrations"),
    )


def downgrade() -> None:
    """Drop them; the next version learns from the runs that end from then on."""
    op.drop_table("calibrations")
    op.drop_table("measured_runs")
