"""What jobs and shares hold, as conditions and columns of queries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Select, and_, func, or_, select, union_all

from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.tables import attempt_nodes, attempts, jobs
from trainyard.protocol.states import AttemptNodeState, JobState

KEEPS_SPARES: ColumnElement[bool] = and_(
    jobs.c.state == JobState.QUEUED,
    jobs.c.demand.is_(None),  # with the state a range of the queue's index
    jobs.c.spare_slots > 0,
)
"""The condition of the queued jobs whose attempt lost a node, in place of which they have a spare
one. Such a job keeps its spare nodes, and with them the slots of the shares of that attempt."""
HOLDS: ColumnElement[bool] = or_(
    jobs.c.state.in_((JobState.STARTING, JobState.RUNNING, JobState.STOPPING)), KEEPS_SPARES
)
"""The condition of the jobs that hold slots."""
HELD_SLOTS: ColumnElement[int] = jobs.c.world_size + jobs.c.spare_slots
"""Slots that such a job holds: those of its ranks, and of its spare nodes."""

HAS_RANKS: ColumnElement[bool] = attempt_nodes.c.state != AttemptNodeState.SPARE
"""The condition of the shares that have ranks."""
IS_KEPT: ColumnElement[bool] = and_(
    attempt_nodes.c.state == AttemptNodeState.ENDED,
    attempt_nodes.c.attempt_id.in_(
        select(attempts.c.id)
        .join(jobs, (jobs.c.id == attempts.c.job_id) & (jobs.c.attempt == attempts.c.number))
        .where(KEEPS_SPARES)
        .correlate(None)
    ),
)
"""The condition of the shares that have ended and whose slots such a job keeps."""
HELD_SINCE: ColumnElement[datetime] = func.coalesce(
    attempt_nodes.c.spare_since, attempts.c.created_at
)
"""The time from which a share holds its slots; the query joins attempts."""


def of_held(shares: Select[*tuple[Any, ...]]) -> CompoundSelect[*tuple[Any, ...]]:
    """Return a query of shares, narrowed to those whose slots are held or kept.

    As two queries, each of which has an index.
    """
    return union_all(shares.where(HOLDS_SLOTS), shares.where(IS_KEPT))
