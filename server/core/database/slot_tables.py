"""Tables that outlive jobs: slots held by ended shares, capacity of nodes, measured runs."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, Integer, String, Table, false, literal_column, text

from server.core.database.column_types import Json, Lazy, UtcDateTime
from server.core.database.schema import ID, metadata
from server.core.database.tables import attempt_nodes
from trainyard.planner.speed.calibrate import MeasuredRun
from trainyard.planner.speed.rates import Calibration
from trainyard.protocol.states import AttemptNodeState

HOLDS_SLOTS = attempt_nodes.c.state != literal_column(f"'{AttemptNodeState.ENDED}'")
"""SQL condition for live shares. The state in the condition is a literal, because a query with a
parameter cannot use the partial index.
"""

# One row per ended share. Live shares are in `attempt_nodes`.
holdings = Table(
    "holdings",
    metadata,
    Column("attempt_id", ID, primary_key=True),
    Column("node", String(100), primary_key=True),
    Column("job_id", ID, nullable=False),
    Column("job_name", String(80), nullable=False),
    Column("project", String(80), nullable=False),
    Column("attempt", Integer, nullable=False),  # number of the attempt
    Column("slots", Integer, nullable=False),  # number of slots
    Column("spare", Boolean, nullable=False, default=False, server_default=false()),
    # An attempt may reserve the same spare node twice.
    Column("since", UtcDateTime, primary_key=True),
    Column("until", UtcDateTime, nullable=False),
    Column("spent", Json),  # day -> category -> slot-milliseconds; set after the job ended
    Index(None, "until"),
    Index(None, "job_id"),
    # The scheduler reads the rows without `spent` every few seconds.
    Index(
        "ix_holdings_unsettled",
        "job_id",
        sqlite_where=text("spent IS NULL"),
        postgresql_where=text("spent IS NULL"),
    ),
)

# One row for each change to a node's capacity that the scheduler noticed.
capacity_changes = Table(
    "capacity_changes",
    metadata,
    Column("node", String(100), primary_key=True),
    Column("since", UtcDateTime, primary_key=True),
    Column("slots", Integer, nullable=False),
    Column("online", Boolean, nullable=False),
    Column("takes_jobs", Boolean, nullable=False),
    Column("withheld", Integer, nullable=False),  # number of withheld slots
)

# The newest ended attempts with measured steps, by kind of hardware.
measured_runs = Table(
    "measured_runs",
    metadata,
    Column("attempt_id", ID, primary_key=True),
    Column("device", String(8), nullable=False),
    Column("device_name", String(200), nullable=False),
    Column("ended_at", UtcDateTime, nullable=False, index=True),
    Column("run", Lazy(MeasuredRun), nullable=False),
    # For limits on the number of rows per job, submitter and node; null in rows of older versions.
    Column("job_id", ID),
    Column("submitter", String(100)),  # id of the token that submitted the job
    Column("node", String(100)),  # node of rank 0
    Index(None, "device", "device_name"),
)

# Coefficients fitted to the measured runs.
calibrations = Table(
    "calibrations",
    metadata,
    Column("device", String(8), primary_key=True),
    Column("device_name", String(200), primary_key=True),
    Column("fitted", Lazy(Calibration), nullable=False),
    Column("fitted_at", UtcDateTime, nullable=False),
)
