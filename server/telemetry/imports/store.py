"""Stores imported runs as ended jobs with one attempt; their points arrive in batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, insert, select, update

from server.api.auth.endings import write_as
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.metric_and_log_tables import imports
from server.core.database.tables import attempts, jobs
from server.core.errors import ConflictError, InvalidRequestError
from server.core.events.store import NewEvent, append_event, append_events
from server.core.lifecycle import lock_own_job
from server.core.subject import SERVER, Actor, Subject
from server.jobs.jobs.queries import read_import
from server.jobs.jobs.submission import insert_rows
from server.jobs.packs.store import lock_digest
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import MAX_SERIES, store_points
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.past_runs.views import (
    MAX_BATCH_POINTS,
    ImportedPoints,
    ImportedRun,
    ImportRequest,
    ImportView,
)
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.event_data import Imported, MetricsDropped
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import (
    AttemptCause,
    AttemptOutcome,
    AttemptState,
    DesiredState,
    JobState,
)
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.program import ProgramSection

LAYOUT = "imported"
"""Layout of an imported job, as lists show it."""
UNKNOWN_COMMAND = "unknown"
"""First word of the command if the tool did not record the command."""
DESIRED = {JobState.STOPPED: DesiredState.STOP, JobState.CANCELLED: DesiredState.CANCEL}


def start_import(context: Context, request: ImportRequest, *, actor: Actor) -> ImportView:
    """Store a run without its points, or return the existing import of the same content.

    Raises:
        InvalidRequestError: the run's project does not exist, or is hidden from the actor.
        ForbiddenError: the actor lacks `jobs:write` in the project.
    """
    run = request.run
    with write_as(context, actor) as connection:
        lock_digest(context, connection, f"{request.project} {run.digest}")
        may = actor.scope.may(Permission.JOBS_WRITE, request.project)
        known = _earlier(connection, request) if may else None
        if known is not None:
            return read_import(connection, known)
        job_id = context.new_id()
        spec = _spec(request)
        row = _job(context, job_id, spec=spec, request=request, actor=actor)
        scopes = {job_id: actor.scope}
        insert_rows(connection, [row], specs={job_id: spec}, scopes=scopes, run=run)
        attempt = _attempt(context.new_id(), job_id, request=request, actor=actor)
        connection.execute(insert(attempts).values(attempt))
        imported = {"job_id": job_id, "project": request.project, "digest": run.digest, "run": run}
        imported |= {"received": 0, "reason": _ended(request)}
        connection.execute(insert(imports).values(**imported))
        event = NewEvent(
            Imported(tool=run.tool, run_id=run.run_id, points=run.points),
            actor,
            Subject(job_id),
            f"{request.name} is run {run.run_id} of {run.tool}, with {run.points:,} points",
        )
        append_events(context, connection, [event], touched=True)
        note_change(object=f"jobs/{job_id}", project=request.project, after={"name": request.name})
        return read_import(connection, job_id)


def add_points(context: Context, job_id: str, batch: ImportedPoints, *, actor: Actor) -> ImportView:
    """Store the next points of an import; ignore a batch that starts with stored points.

    Raises:
        NotFoundError: the job does not exist or is not an import.
        ConflictError: earlier points are missing.
        InvalidRequestError: the batch exceeds the number of points per request or of the whole run.
    """
    given = sum(len(series.points) for series in batch.series)
    if given > MAX_BATCH_POINTS:
        raise InvalidRequestError.at(
            "/series", f"{given:,} points; legal: up to {MAX_BATCH_POINTS:,} in one request"
        )
    with write_as(context, actor) as connection:
        lock_own_job(connection, job_id, scope=actor.scope, permission=Permission.JOBS_WRITE)
        view = read_import(connection, job_id)
        if batch.start < view.received:
            return view
        if batch.start > view.received:
            raise ConflictError(
                f"start={batch.start}, but the server has {view.received} points; legal: "
                f"start={view.received}"
            )
        received = view.received + given
        if received > view.run.points:
            raise InvalidRequestError.at(
                "/series",
                f"{received:,} points with the earlier ones; the run has {view.run.points:,}",
            )
        own = imports.c.job_id == job_id
        query = select(attempts.c.id, attempts.c.outcome, imports.c.reason).where(own)
        joined = query.join(imports, imports.c.job_id == attempts.c.job_id)
        attempt_id, outcome, reason = connection.execute(joined).one()
        if left_out := store_points(connection, attempt_id, _points(batch)):
            append_event(context, connection, _dropped(job_id, left_out[0]))
        connection.execute(update(imports).where(own).values(received=received))
        changed = {"reason": _incomplete(view.run, received), "updated_at": context.now()}
        if received == view.run.points:  # the end time is set when the import starts
            state = JobState(outcome)
            changed |= {"reason": reason, "state": state, "desired": _desired(state)}
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**changed))
        return view.model_copy(update={"received": received})


def _earlier(connection: Connection, request: ImportRequest) -> str | None:
    """Return the job of the same content in the same project; None without one."""
    same = imports.c.project == request.project, imports.c.digest == request.run.digest
    found: str | None = connection.scalar(select(imports.c.job_id).where(*same))
    return found


def _spec(request: ImportRequest) -> JobSpec:
    # Stored as a program, because only the command and its arguments are known. Comparisons of
    # jobs read both.
    command = request.command or (UNKNOWN_COMMAND,)
    program = ProgramSection(command=command, arguments=request.arguments)
    return JobSpec(
        name=request.name, description=request.description, tags=request.tags, program=program
    )


def _job(
    context: Context, job_id: str, *, spec: JobSpec, request: ImportRequest, actor: Actor
) -> dict[str, object]:
    now, run = context.now(), request.run
    began, ended = _times(request)
    # The job gets the run's state with the last points, because the job is incomplete before.
    state = JobState.STOPPED if run.points else JobState(request.state)
    loss = None if request.loss is None else float(request.loss)
    return {
        "id": job_id,
        "name": request.name,
        "tags": list(request.tags),
        "project": request.project,
        "spec": StoredRecord.of(spec),
        "spec_digest": spec.digest,
        "env": {},
        "state": state,
        "desired": _desired(state),
        "reason": _incomplete(run, 0) if run.points else _ended(request),
        "priority": spec.resources.priority,
        "attempt": 1,
        "world_size": 1,
        "layout": LAYOUT,
        "preemptible": False,
        "progress": Progress(step=request.last_step, steps=None, loss=loss),
        "imported_from": run.tool,
        "created_by": actor.name,
        "owner_id": actor.owner_id,
        "created_at": now,
        "updated_at": now,
        "started_at": began,
        "ended_at": ended,
    }


def _attempt(
    attempt_id: str, job_id: str, *, request: ImportRequest, actor: Actor
) -> dict[str, object]:
    began, ended = _times(request)
    return {
        "id": attempt_id,
        "job_id": job_id,
        "number": 1,
        "cause": AttemptCause.IMPORT,
        "actor": actor.name,
        "state": AttemptState.ENDED,
        "desired": _desired(JobState(request.state)),
        "outcome": AttemptOutcome(request.state),
        "layout": Layout(),
        "overrides": Overrides(),
        "micro_batch_size": 1,
        "last_step": request.last_step,
        "rendezvous_port": 0,
        "created_at": began,
        "started_at": began,
        "ended_at": ended,
    }


def _desired(state: JobState) -> DesiredState:
    return DESIRED.get(state, DesiredState.RUN)


def _times(request: ImportRequest) -> tuple[datetime, datetime]:
    began = datetime.fromtimestamp(request.start_time, UTC)
    return began, began + timedelta(seconds=request.seconds)


def _ended(request: ImportRequest) -> str:
    words = f"imported from {request.run.tool}"
    return f"{words}: {request.reason}" if request.reason else words


def _incomplete(run: ImportedRun, received: int) -> str:
    return (
        f"the import from {run.tool} is incomplete: {received:,} of {run.points:,} points; "
        "the same import continues it"
    )


def _points(batch: ImportedPoints) -> dict[str, Points]:
    parts: dict[str, list[Points]] = {}
    for series in batch.series:
        steps, times, values = zip(*series.points, strict=True)
        own = Points.of(steps, times, map(float, values))
        parts.setdefault(series.name, []).append(own)
    return {name: Points.joined(own) for name, own in parts.items()}


def _dropped(job_id: str, first: str) -> NewEvent:
    message = f"metrics are kept for {MAX_SERIES:,} series; {first!r} and further ones are left out"
    dropped = MetricsDropped(what="series", limit=MAX_SERIES, first=first)
    return NewEvent(dropped, SERVER, Subject(job_id), message)
