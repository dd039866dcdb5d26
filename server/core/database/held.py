"""SQL conditions and columns for queries of the slots that jobs and shares hold."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Select, and_, func, or_, select, union_all

from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.tables import attempt_nodes, attempts, jobs
from trainyard.protocol.states import AttemptNodeState, JobState

KEEPS_SPARES: ColumnElement[bool] = and_(
    jobs.c.state == JobState.QUEUED,
    jobs.c.demand.is_(None),  # state and demand together select a range of the queue's index
    jobs.c.spare_slots > 0,
)
"""SQL condition for queued jobs that lost a node and have a spare node to replace it. Such a job
keeps its spare nodes, and the slots that its newest attempt had.
"""
HOLDS: ColumnElement[bool] = or_(
    jobs.c.state.in_((JobState.STARTING, JobState.RUNNING, JobState.STOPPING)), KEEPS_SPARES
)
"""SQL condition for jobs that hold slots."""
HELD_SLOTS: ColumnElement[int] = jobs.c.world_size + jobs.c.spare_slots
"""Number of slots that a job holds for its ranks and on spare nodes, if the job meets `HOLDS`."""

HAS_RANKS: ColumnElement[bool] = attempt_nodes.c.state != AttemptNodeState.SPARE
"""SQL condition for shares with ranks."""
IS_KEPT: ColumnElement[bool] = and_(
    attempt_nodes.c.state == AttemptNodeState.ENDED,
    attempt_nodes.c.attempt_id.in_(
        select(attempts.c.id)
        .join(jobs, (jobs.c.id == attempts.c.job_id) & (jobs.c.attempt == attempts.c.number))
        .where(KEEPS_SPARES)
        .correlate(None)
    ),
)
"""SQL condition for ended shares with slots that a queued job keeps (`KEEPS_SPARES`)."""
HELD_SINCE: ColumnElement[datetime] = func.coalesce(
    attempt_nodes.c.spare_since, attempts.c.created_at
)
"""Time from which a share holds its slots; the query must join the table `attempts`."""


def of_held(shares: Select[*tuple[Any, ...]]) -> CompoundSelect[*tuple[Any, ...]]:
    """Narrow a query of shares to those with held slots and those with kept slots.

    The result is the union of two queries, because each of them uses its own index.
    """
    return union_all(shares.where(HOLDS_SLOTS), shares.where(IS_KEPT))
