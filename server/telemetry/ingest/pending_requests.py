"""Reads the unanswered requests to trainers, which replies to reports contain."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, select

from server.core.database.tables import requests
from server.telemetry.ingest.report import IncomingReport
from trainyard.protocol.worker_messages import PendingRequest

REQUESTS_AT_ONCE = 100
_numbered = (
    select(
        requests.c.attempt_id,
        requests.c.id,
        requests.c.request,
        func.row_number()
        .over(partition_by=requests.c.attempt_id, order_by=requests.c.id)
        .label("number"),
    )
    .where(
        requests.c.attempt_id.in_(bindparam("attempt_ids", expanding=True)),
        requests.c.answer.is_(None),
    )
    .subquery()
)
_PENDING_REQUESTS = (
    select(_numbered.c.attempt_id, _numbered.c.id, _numbered.c.request)
    .where(_numbered.c.number <= REQUESTS_AT_ONCE)
    .order_by(_numbered.c.id)
)


def pending_requests(
    connection: Connection, reports: Sequence[IncomingReport]
) -> dict[str, tuple[PendingRequest, ...]]:
    """Return the unanswered requests by attempt id, the oldest first.

    Only replies to the node of global rank 0 contain requests, because only it can pass them on.
    """
    shares = [each.share for each in reports]
    mine = [each.attempt_id for each in shares if each.node_rank == 0 and each.has_requests]
    found: dict[str, tuple[PendingRequest, ...]] = {}
    if mine:
        for row in connection.execute(_PENDING_REQUESTS, {"attempt_ids": mine}):
            pending = PendingRequest(id=row.id, request=row.request)
            found[row.attempt_id] = (*found.get(row.attempt_id, ()), pending)
    return found
