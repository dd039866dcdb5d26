"""Slots on which the ranks of several jobs were slower than their peers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from sqlalchemy import Connection, distinct, func, or_, select

from server.core.context import Context
from server.core.database.metric_and_log_tables import stragglers
from server.core.database.tables import attempts, nodes
from trainyard.protocol.rest.metrics_and_logs import SlowSlot

SEVERAL_JOBS = 2
"""Minimum number of slowed jobs for which the view of a node lists a slot as slow."""
REMEMBERED = timedelta(days=30)
"""Time for which a straggler counts against the slot on which its rank ran."""


def slow_slots(
    context: Context, connection: Connection, names: Collection[str]
) -> Mapping[str, Sequence[SlowSlot]]:
    """Return the slots that slowed several jobs since `trusted_since`, by node."""
    counted = func.count(distinct(attempts.c.job_id)).label("jobs")
    query = (
        select(stragglers.c.node, stragglers.c.slot, counted)
        .join(attempts, attempts.c.id == stragglers.c.attempt_id)
        .join(nodes, nodes.c.name == stragglers.c.node)
        .where(
            nodes.c.name.in_(names),
            stragglers.c.found_at >= context.now() - REMEMBERED,
            or_(nodes.c.trusted_since.is_(None), stragglers.c.found_at > nodes.c.trusted_since),
        )
        .group_by(stragglers.c.node, stragglers.c.slot)
        .having(counted >= SEVERAL_JOBS)
        .order_by(stragglers.c.node, stragglers.c.slot)
    )
    found: dict[str, list[SlowSlot]] = {}
    for row in connection.execute(query):
        found.setdefault(row.node, []).append(SlowSlot(slot=row.slot, jobs=row.jobs))
    return found
