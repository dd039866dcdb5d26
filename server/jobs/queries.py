"""Rows into the models of the API: jobs, their attempts, requests and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sqlalchemy import Connection, select

from server.attempts.lineage import attempts_of, lineage_of
from server.context import Context
from server.database.rows import Attempt, AttemptNode, Job, JobRequest
from server.database.tables import attempt_nodes, attempts, jobs, requests
from server.errors import NotFoundError
from server.jobs.reason import shown_reason
from trainyard.base.masks import has_credentials, hide_credentials
from trainyard.protocol.rest.attempts import AttemptNodeView, AttemptView
from trainyard.protocol.rest.jobs import JobRequestView, JobView
from trainyard.protocol.states import AttemptState, JobState
from trainyard.spec.auto import auto_values
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.sections.operation import RetrySection

Verb = Literal["stop", "cancel", "resume", "resize", "save", "delete"]

VERBS: dict[JobState, tuple[Verb, ...]] = {
    JobState.QUEUED: ("stop", "cancel"),
    JobState.STARTING: ("stop", "cancel"),
    JobState.RUNNING: ("stop", "resize", "save", "cancel"),
    JobState.STOPPING: ("cancel",),
    JobState.SUCCEEDED: ("resume", "delete"),
    JobState.FAILED: ("resume", "delete"),
    JobState.STOPPED: ("resume", "delete"),
    JobState.CANCELLED: ("resume", "delete"),
}


def job_row(connection: Connection, job_id: str) -> Job:
    """Return a job's row.

    Raises:
        NotFoundError: no job has this id.
    """
    row = Job.one_or_none(connection, Job.select().where(jobs.c.id == job_id))
    if row is None:
        raise NotFoundError(f"no job has the id {job_id!r}")
    return row


def job_view(context: Context, connection: Connection, job_id: str) -> JobView:
    """Return one job, whole; secrets of its spec are masked.

    Raises:
        NotFoundError: no job has this id.
    """
    job = job_row(connection, job_id)
    newest = Attempt.select().where(attempts.c.job_id == job_id, attempts.c.number == job.attempt)
    views = attempt_views(connection, job_id, job.spec, Attempt.all(connection, newest))
    current = views[0] if views else None
    return JobView(
        id=job.id,
        name=job.name,
        tags=tuple(job.tags),
        state=job.state,
        reason=connection.scalar(select(shown_reason).where(jobs.c.id == job_id)),
        attempt=job.attempt,
        world_size=job.world_size,
        layout=job.layout,
        priority=job.priority,
        progress=job.progress,
        created_at=job.created_at,
        updated_at=job.updated_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        description=job.spec.description,
        spec=_shown(context, job),
        desired=job.desired,
        pending=job.pending,
        forked_from=job.forked_from,
        fork_parts=job.fork_parts,
        current_attempt=current,
        retries_left=max(0, _retry(job, current).max_retries - job.retries_used),
        verbs=VERBS[job.state],
    )


def _shown(context: Context, job: Job) -> JobSpec:
    spec = job.spec
    if has_credentials(text := spec.model_dump_json()):
        spec = parse_job_spec(hide_credentials(text))
    return spec.model_copy(update={"env": context.secrets.shown(job.env)})


def _retry(job: Job, current: AttemptView | None) -> RetrySection:
    """Return the retry settings of the pending launch, else of the newest attempt."""
    spec = job.spec
    launch = job.pending or current
    return spec.retry if launch is None else launch.overrides.retry or spec.retry


def list_attempts(
    connection: Connection, job_id: str, *, before: int | None, limit: int
) -> list[AttemptView]:
    """Return at most `limit` attempts of a job below a number, the newest first.

    Raises:
        NotFoundError: no job has this id.
    """
    spec = job_row(connection, job_id).spec
    query = Attempt.select().where(attempts.c.job_id == job_id)
    if before is not None:
        query = query.where(attempts.c.number < before)
    rows = Attempt.all(connection, query.order_by(attempts.c.number.desc()).limit(limit))
    return attempt_views(connection, job_id, spec, rows)


def attempt_views(
    connection: Connection, job_id: str, spec: JobSpec, rows: Sequence[Attempt]
) -> list[AttemptView]:
    """Return the views of some attempts of a job with this spec."""
    nodes: dict[str, list[AttemptNodeView]] = {row.id: [] for row in rows}
    shares = AttemptNode.select().where(attempt_nodes.c.attempt_id.in_(nodes))
    for share in AttemptNode.all(connection, shares.order_by(attempt_nodes.c.node_rank)):
        nodes[share.attempt_id].append(_node_view(share))
    lineage = lineage_of(attempts_of(connection, job_id))
    return [
        _attempt_view(row, spec, nodes[row.id], on_lineage=lineage.reaches(row.number))
        for row in rows
    ]


def _attempt_view(
    row: Attempt, spec: JobSpec, nodes: Sequence[AttemptNodeView], *, on_lineage: bool
) -> AttemptView:
    return AttemptView(
        id=row.id,
        number=row.number,
        cause=row.cause,
        actor=row.actor,
        state=row.state,
        outcome=row.outcome,
        failure=row.failure,
        layout=row.layout,
        layout_name=str(row.layout),
        device=row.device,
        auto=auto_values(row.overrides.apply(spec), row.device, row.layout),
        overrides=row.overrides,
        micro_batch_size=row.micro_batch_size,
        parent_checkpoint_id=row.parent_checkpoint_id,
        start_step=row.start_step,
        skip=row.skip,
        last_step=row.last_step,
        on_lineage=on_lineage,
        continuity=row.continuity,
        save_failed=None if row.state == AttemptState.ENDED else row.save_failed,
        nodes=tuple(nodes),
        provenance=row.provenance,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _node_view(row: AttemptNode) -> AttemptNodeView:
    return AttemptNodeView(
        node=row.node,
        node_rank=row.node_rank,
        slots=tuple(row.slots),
        state=row.state,
        unreachable_since=row.unreachable_since,
        outcome=row.outcome,
    )


def list_requests(
    connection: Connection, job_id: str, *, before: str | None, limit: int
) -> list[JobRequestView]:
    """Return at most `limit` requests on a job's attempts before an id, the newest first.

    Raises:
        NotFoundError: no job has this id.
    """
    check_job(connection, job_id)
    query = (
        JobRequest.select()
        .join(attempts, attempts.c.id == requests.c.attempt_id)
        .where(attempts.c.job_id == job_id)
    )
    if before is not None:
        query = query.where(requests.c.id < before)
    rows = JobRequest.all(connection, query.order_by(requests.c.id.desc()).limit(limit))
    return [_request_view(row) for row in rows]


def read_request(connection: Connection, request_id: str) -> JobRequestView:
    """Return a request that was just asked."""
    query = JobRequest.select().where(requests.c.id == request_id)
    return _request_view(JobRequest.one(connection, query))


def _request_view(row: JobRequest) -> JobRequestView:
    return JobRequestView(
        id=row.id, request=row.request, answer=row.answer, created_at=row.created_at
    )


def check_job(connection: Connection, job_id: str) -> None:
    """Refuse the id of no job.

    Raises:
        NotFoundError: no job has this id.
    """
    found = select(jobs.c.id).where(jobs.c.id == job_id)
    if connection.execute(found).one_or_none() is None:
        raise NotFoundError(f"no job has the id {job_id!r}")
