"""Views of attempts, and of requests to their trainers."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from server.core.database.rows import Attempt, AttemptNode
from server.core.database.tables import attempt_nodes, attempts, jobs, requests
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.jobs.attempts.lineage import attempts_of, lineage_of
from server.jobs.ranks.store import present_stragglers
from trainyard.protocol.rest.attempts import AttemptNodeView, AttemptView
from trainyard.protocol.rest.jobs import JobRequestView
from trainyard.protocol.resume_rules import harmless_differences
from trainyard.protocol.states import AttemptState
from trainyard.spec.auto import auto_values
from trainyard.spec.job import JobSpec

_REQUESTS = select(*(requests.c[name] for name in JobRequestView.model_fields))


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
    views = []
    for row in rows:
        effective = row.overrides.apply(spec)
        computed = {
            "layout_name": spec.layout_name(row.layout),
            "micro_batch_size": row.micro_batch_size if spec.program is None else None,
            "auto": auto_values(effective, row.device, row.layout),
            "changes": harmless_differences(spec, effective),
            "on_lineage": lineage.reaches(row.number),
            "save_failed": None if row.state == AttemptState.ENDED else row.save_failed,
            "nodes": tuple(nodes[row.id]),
            "stragglers": tuple(slow.get(row.id, ())),
        }
        views.append(AttemptView(**row.values_for(AttemptView) | computed))
    return views


def list_requests(
    connection: Connection, job_id: str, *, scope: Scope, before: str | None, limit: int
) -> list[JobRequestView]:
    """Return at most `limit` requests of a job with ids below `before`, newest first.

    Raises:
        NotFoundError: no job has this id.
    """
    check_job(connection, job_id, scope=scope)
    query = _REQUESTS.join(attempts, attempts.c.id == requests.c.attempt_id)
    query = query.where(attempts.c.job_id == job_id)
    if before is not None:
        query = query.where(requests.c.id < before)
    rows = connection.execute(query.order_by(requests.c.id.desc()).limit(limit))
    return [JobRequestView(**row._mapping) for row in rows]


def read_request(connection: Connection, request_id: str, *, scope: Scope) -> JobRequestView:
    """Return one request to a visible job."""
    query = _REQUESTS.join(attempts, attempts.c.id == requests.c.attempt_id)
    query = query.join(jobs, jobs.c.id == attempts.c.job_id)
    its = requests.c.id == request_id
    row = connection.execute(query.where(its, scope.filter(jobs.c.project))).one()
    return JobRequestView(**row._mapping)
