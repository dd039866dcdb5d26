"""Views of attempts, and of requests to their trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from sqlalchemy import Connection, Table

from server.core.database.rows import Attempt, AttemptNode, TypedRow
from server.core.database.tables import attempt_nodes, attempts, requests
from server.core.lifecycle import check_job
from server.jobs.attempts.lineage import attempts_of, lineage_of
from server.jobs.ranks.store import present_stragglers
from trainyard.protocol.rest.attempts import AttemptNodeView, AttemptView
from trainyard.protocol.rest.jobs import JobRequestView
from trainyard.protocol.rest.metrics_and_logs import StragglerView
from trainyard.protocol.resume_rules import harmless_differences
from trainyard.protocol.states import AttemptState
from trainyard.run.records import Request, RequestAnswer
from trainyard.spec.auto import auto_values
from trainyard.spec.job import JobSpec


@dataclass(frozen=True, slots=True)
class StoredRequest(TypedRow):
    """A request to the trainer of an attempt."""

    table: ClassVar[Table] = requests
    id: str
    attempt_id: str
    request: Request
    answer: RequestAnswer | None
    created_at: datetime


def attempt_views(
    connection: Connection, job_id: str, *, spec: JobSpec, rows: Sequence[Attempt]
) -> list[AttemptView]:
    """Return the views of the given attempts of a job."""
    if not rows:
        return []
    nodes: dict[str, list[AttemptNodeView]] = {row.id: [] for row in rows}
    shares = AttemptNode.select().where(attempt_nodes.c.attempt_id.in_(nodes))
    for share in AttemptNode.all(connection, shares.order_by(attempt_nodes.c.node_rank)):
        nodes[share.attempt_id].append(AttemptNodeView(**share.values_for(AttemptNodeView)))
    lineage = lineage_of(attempts_of(connection, job_id))
    live = [row.id for row in rows if row.state != AttemptState.ENDED]
    slow = present_stragglers(connection, live) if live else {}
    return [
        _attempt_view(
            row,
            spec,
            nodes=nodes[row.id],
            stragglers=slow.get(row.id, ()),
            on_lineage=lineage.reaches(row.number),
        )
        for row in rows
    ]


def list_requests(
    connection: Connection, job_id: str, *, before: str | None, limit: int
) -> list[JobRequestView]:
    """Return at most `limit` requests to a job's attempts, newest first, older than the id
    `before`.

    Raises:
        NotFoundError: no job has this id.
    """
    check_job(connection, job_id)
    query = (
        StoredRequest.select()
        .join(attempts, attempts.c.id == requests.c.attempt_id)
        .where(attempts.c.job_id == job_id)
    )
    if before is not None:
        query = query.where(requests.c.id < before)
    rows = StoredRequest.all(connection, query.order_by(requests.c.id.desc()).limit(limit))
    return [JobRequestView(**row.values_for(JobRequestView)) for row in rows]


def read_request(connection: Connection, request_id: str) -> JobRequestView:
    """Return one request."""
    query = StoredRequest.select().where(requests.c.id == request_id)
    return JobRequestView(**StoredRequest.one(connection, query).values_for(JobRequestView))


def _attempt_view(
    row: Attempt,
    spec: JobSpec,
    *,
    nodes: Sequence[AttemptNodeView],
    stragglers: Sequence[StragglerView],
    on_lineage: bool,
) -> AttemptView:
    effective = row.overrides.apply(spec)
    computed = {
        "layout_name": spec.layout_name(row.layout),
        "micro_batch_size": row.micro_batch_size if spec.program is None else None,
        "auto": auto_values(effective, row.device, row.layout),
        "changes": harmless_differences(spec, effective),
        "on_lineage": on_lineage,
        "save_failed": None if row.state == AttemptState.ENDED else row.save_failed,
        "nodes": tuple(nodes),
        "stragglers": tuple(stragglers),
    }
    return AttemptView(**row.values_for(AttemptView) | computed)
