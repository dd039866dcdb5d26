"""Views of jobs, with their attempts and events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sqlalchemy import Connection, bindparam, func, select

from server.api.accounts.queries import names_of
from server.core.context import Context
from server.core.database.column_types import seconds_between
from server.core.database.metric_and_log_tables import imports
from server.core.database.rows import Attempt, Job
from server.core.database.scheduler_tables import shown_reason
from server.core.database.tables import attempts, events, jobs
from server.core.errors import NotFoundError, UnreadableError
from server.core.events.tail import StoredEvent
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.jobs.attempts.next_action import next_action
from server.jobs.attempts.queries import attempt_views
from server.jobs.facts.store import read_facts
from trainyard.base.redaction import has_credentials, hide_credentials
from trainyard.protocol.past_runs.views import ImportView
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.resume_rules import harmless_differences
from trainyard.protocol.states import TERMINAL_JOB_STATES, JobState
from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.sections.resources import priority_words

VERBS: dict[JobState, tuple[str, ...]] = {
    JobState.QUEUED: ("stop", "cancel"),
    JobState.STARTING: ("stop", "cancel"),
    JobState.RUNNING: ("stop", "resize", "save", "cancel"),
    JobState.STOPPING: ("cancel",),
    JobState.SUCCEEDED: ("resume", "delete"),
    JobState.FAILED: ("resume", "delete"),
    JobState.STOPPED: ("resume", "delete"),
    JobState.CANCELLED: ("resume", "delete"),
}


@dataclass(frozen=True, slots=True)
class ShownJob(Job):
    """A job with the reason that its view shows."""

    shown_reason: Annotated[str | None, shown_reason]


# Queries of each job view, built once because building a query takes longer than running it.
_SHOWN = ShownJob.select().where(jobs.c.id == bindparam("of_job"))
_ATTEMPT = Attempt.select().where(
    attempts.c.job_id == bindparam("of_job"), attempts.c.number == bindparam("of_number")
)


def job_row(
    connection: Connection,
    job_id: str,
    *,
    scope: Scope,
    permission: Permission = Permission.JOBS_READ,
) -> Job:
    """Return the row of a job on which the caller has a permission.

    Raises:
        NotFoundError: no job has this id, or the caller does not see the job.
        ForbiddenError: the caller sees the job, and lacks the permission.
    """
    its = jobs.c.id == job_id, scope.filter(jobs.c.project)
    row = Job.one_or_none(connection, Job.select().where(*its))
    missing = NotFoundError(f"no job has the id {job_id!r}")
    if row is None:
        raise missing
    scope.check(row.project, permission, missing=missing)
    return row


def job_view(context: Context, job_id: str, *, scope: Scope) -> JobView:
    """Return the full view of a job, with masked secrets in its spec.

    Raises:
        NotFoundError: no job has this id.
        UnreadableError: another version wrote the spec of the job.
    """
    with context.database.read() as connection:
        # The database filters, so that a hidden job takes as long as a missing one.
        shown = _SHOWN if scope.sees_all else _SHOWN.where(scope.filter(jobs.c.project))
        job = ShownJob.one_or_none(connection, shown, {"of_job": job_id})
        if job is None:
            raise NotFoundError(f"no job has the id {job_id!r}")
        newest = {"of_job": job_id, "of_number": job.attempt}
        rows = Attempt.all(connection, _ATTEMPT, newest) if job.attempt else ()
        views = attempt_views(connection, job_id, spec=job.spec, rows=rows)
        current = views[0] if views else None
        more: dict[str, Any] = {"next_action": next_action(connection, job, current)}
        if job.imported_from is not None:
            more["imported"] = read_import(connection, job_id)
        if job.spec.program is not None:
            more["facts"] = read_facts(connection, [job_id]).get(job_id)
        if rows:
            times = attempts.c.created_at, attempts.c.ended_at
            active = select(func.sum(seconds_between(connection, *times)))
            more["active_seconds"] = connection.scalar(active.where(attempts.c.job_id == job_id))
    return _view(context, job, current, reason=job.shown_reason, **more)


def view_after(done: str, context: Context, job_id: str, *, scope: Scope) -> JobView:
    """Return the view of a job after a command was carried out.

    Raises:
        UnreadableError: the spec of the job cannot be read, although the command was carried out.
    """
    try:
        return job_view(context, job_id, scope=scope)
    except UnreadableError as error:
        raise UnreadableError(f"{done}; {error.detail}") from None


def ended_or_unknown(context: Context, job_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids in `job_ids` that belong to ended or unknown jobs, in the given order."""
    query = select(jobs.c.id).where(
        jobs.c.id.in_(job_ids), jobs.c.state.not_in(sorted(TERMINAL_JOB_STATES))
    )
    with context.database.read() as connection:
        open_jobs = set(connection.scalars(query))
    return tuple(job_id for job_id in job_ids if job_id not in open_jobs)


def view_of(context: Context, job: Job, *, scope: Scope) -> JobView:
    """Return the view of a job's row; query the database only if the view needs other rows."""
    if job.attempt or job.demand is not None or job.spec.program is not None:
        return job_view(context, job.id, scope=scope)
    return _view(context, job, None)


def _view(context: Context, job: Job, current: AttemptView | None, **more: object) -> JobView:
    """Return the view of a job; `more` has fields that are read from other rows."""
    spec = _shown(context, job)
    effective = _effective(spec, job, current)
    computed = {
        "owner": names_of(context, [job.owner_id]).get(job.owner_id),
        "description": job.spec.description,
        "spec": spec,
        "set_fields": tuple(_set_fields(spec)),
        "effective_spec": effective,
        "changes": harmless_differences(spec, effective),
        "current_attempt": current,
        "retries_left": max(0, effective.retry.max_retries - job.retries_used),
        "verbs": _verbs(job),
        "priority_words": priority_words(job.priority),
    }
    return JobView(**job.values_for(JobView) | computed | more)


def list_attempts(
    connection: Connection, job_id: str, *, scope: Scope, before: int | None, limit: int
) -> list[AttemptView]:
    """Return at most `limit` attempts of a job, newest first, with numbers below `before`.

    Raises:
        NotFoundError: no job has this id.
    """
    spec = job_row(connection, job_id, scope=scope).spec
    query = Attempt.select().where(attempts.c.job_id == job_id)
    if before is not None:
        query = query.where(attempts.c.number < before)
    rows = Attempt.all(connection, query.order_by(attempts.c.number.desc()).limit(limit))
    return attempt_views(connection, job_id, spec=spec, rows=rows)


def list_events(
    context: Context, job_id: str, *, scope: Scope, before: int | None, limit: int
) -> list[dict[str, Any]]:
    """Return at most `limit` events of a job, newest first, with ids below `before`.

    The events are in a form that orjson can serialize.

    Raises:
        NotFoundError: no job has this id.
    """
    query = StoredEvent.select().where(events.c.job_id == job_id)
    if before is not None:
        query = query.where(events.c.id < before)
    with context.database.read() as connection:
        check_job(connection, job_id, scope=scope)
        rows = StoredEvent.all(connection, query.order_by(events.c.id.desc()).limit(limit))
    return [row.view for row in rows]


def _verbs(job: Job) -> tuple[str, ...]:
    """Return the currently legal commands.

    A program may lack `save`, and cannot be resumed after its success.
    """
    if job.imported_from is not None:
        return ("delete",)
    if job.spec.program is None:
        return VERBS[job.state]
    without = set() if "save" in job.progress.answers else {"save"}
    if job.state == JobState.SUCCEEDED:
        without.add("resume")
    return tuple(verb for verb in VERBS[job.state] if verb not in without)


def _shown(context: Context, job: Job) -> JobSpec:
    spec = job.spec
    if has_credentials(job.stored_spec.text):
        spec = parse_job_spec(hide_credentials(spec.model_dump_json()))
    return spec.model_copy(update={"env": context.secrets.shown(job.env), "project": job.project})


def _effective(spec: JobSpec, job: Job, current: AttemptView | None) -> JobSpec:
    if job.pending is not None:  # not placed yet, so `auto` stays unresolved
        return job.pending.overrides.apply(spec)
    if current is None:
        return spec
    overrides = current.overrides.with_priority(spec, job.priority)
    return resolved(overrides.apply(spec), current.device, current.layout)


def _set_fields(spec: JobSpec) -> Iterator[str]:
    for section, value in spec.model_dump(exclude_defaults=True).items():
        if isinstance(value, dict):
            yield from (f"{section}.{field}" for field in value)
        else:
            yield section


def read_import(connection: Connection, job_id: str) -> ImportView:
    """Return the imported run of a job.

    Raises:
        NotFoundError: no imported job has this id.
    """
    query = select(imports.c.run, imports.c.received).where(imports.c.job_id == job_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(f"no import has made a job with the id {job_id!r}")
    return ImportView(job_id=job_id, run=row.run, received=row.received)
