"""What the nodes offer now, read in two queries."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, select

from server.database.tables import attempt_nodes, attempts, jobs, nodes
from server.nodes.placement import Offer
from trainyard.protocol.states import AttemptNodeState


def read_offers(connection: Connection, *, without_job: str | None = None) -> list[Offer]:
    """Return the nodes that are online and not draining, with the slots that are free on them.

    Args:
        connection: a transaction.
        without_job: a job whose slots count as free, as they will when it is resized.
    """
    holders: dict[str, Counter[str]] = {}
    taken: dict[str, set[int]] = {}
    holdings = connection.execute(
        select(attempt_nodes.c.node, attempt_nodes.c.slots, jobs.c.id, jobs.c.name)
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempt_nodes.c.state != AttemptNodeState.ENDED)
    )
    for node, slots, job_id, name in holdings:
        if job_id != without_job:
            holders.setdefault(node, Counter())[name] += len(slots)
            taken.setdefault(node, set()).update(slots)
    columns = (nodes.c.name, nodes.c.device, nodes.c.slots, nodes.c.roots, nodes.c.protocol)
    rows = connection.execute(
        select(*columns).where(
            nodes.c.offline_since.is_(None), nodes.c.drain.is_(None), nodes.c.notice.is_(None)
        )
    )
    return [
        Offer(
            node=row.name,
            device=row.device,
            slots=row.slots,
            free=tuple(s for s in range(row.slots) if s not in taken.get(row.name, ())),
            roots=row.roots,
            holders=holders.get(row.name, {}),
            protocol=row.protocol,
        )
        for row in rows
    ]
