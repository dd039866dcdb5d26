"""Going on: what a resume would change, carrying it out, the sizes on offer (lifecycle, 27-29)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from server.attempts.launch import newest_attempt_id
from server.attempts.parent import ParentCheckpoint, parent_checkpoint
from server.context import Context
from server.database.rows import Job
from server.database.tables import attempts, checkpoints
from server.errors import ConflictError, InvalidRequestError, NotFoundError
from server.jobs.checks import check_spec, check_world_size, known_slots, roots_of
from server.jobs.comparison import compare
from server.jobs.next_attempt import Baseline, ResumeTarget, work_out
from server.jobs.queries import job_row
from server.jobs.service import end_running
from server.lifecycle import Move, job_to, lock_job, move
from server.nodes.capacity import read_offers
from server.nodes.placement import Demand, Offer, fits
from server.subject import Actor, Subject
from trainyard.planner.plan import resume_options
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.rest.event_data import ResumeRequested
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.rest.resume import (
    ResumeOptions,
    ResumeOptionView,
    ResumePreview,
    ResumeRequest,
)
from trainyard.protocol.states import TERMINAL_JOB_STATES, AttemptCause, DesiredState, JobState

EVERY_SIZE_UP_TO = 64
"""Beyond it resume options name multiples of eight only, and none above `LARGEST_OPTION`."""
LARGEST_OPTION = 1024


@dataclass(frozen=True)
class PreparedResume:
    """A resume that is legal, worked out and not stored."""

    job: Job
    baseline: Baseline
    target: ResumeTarget
    parent: ParentCheckpoint
    manifest: Manifest | None
    """Of the parent, where the job saved it itself."""
    last_step: int
    saves_first: bool
    """Whether the attempt that runs saves, and the job goes on from that save."""


def preview(context: Context, job_id: str, request: ResumeRequest) -> ResumePreview:
    """Return what a resume would change; nothing is stored.

    Raises:
        NotFoundError: there is no such job.
        ConflictError: its state forbids a resume.
        InvalidRequestError: the request disagrees with itself, or the job cannot run so.
    """
    with context.database.read() as connection:
        return _preview(_prepare(context, connection, job_id, request))


def resume(context: Context, job_id: str, request: ResumeRequest, *, actor: Actor) -> ResumePreview:
    """Queue the next attempt of a job that has ended, or resize one that runs.

    A running job is stopped first; its new launch waits on the job until it has saved.

    Raises:
        NotFoundError: there is no such job.
        ConflictError: its state forbids a resume.
        InvalidRequestError: the request disagrees with itself, or the job cannot run so.
    """
    if request.dry_run:
        return preview(context, job_id, request)
    with context.database.write() as connection:
        lock_job(connection, job_id)
        prepared = _prepare(context, connection, job_id, request)
        running = prepared.job.state == JobState.RUNNING
        pending = PendingLaunch(
            cause=AttemptCause.RESIZE if running else AttemptCause.RESUME,
            actor=actor.name,
            overrides=prepared.target.overrides,
            layout=prepared.target.plan.layout,
            checkpoint_id=request.checkpoint_id,
            allow_code_change=request.allow_code_change,
        )
        if running:
            _resize(context, connection, prepared, pending, actor=actor)
        else:
            _queue(context, connection, prepared, pending, actor=actor)
        return _preview(prepared)


def options(context: Context, job_id: str) -> ResumeOptions:
    """Return each world size that the nodes online could give, with its legal layouts.

    Raises:
        NotFoundError: there is no such job.
    """
    with context.database.read() as connection:
        job = job_row(connection, job_id)
        baseline, _ = _baseline(connection, job)
        parent = parent_checkpoint(connection, job.id)
        offers = read_offers(connection, without_job=job_id)
        spec = baseline.effective
        slots = known_slots(connection)
    sizes = _sizes(offers)
    found = resume_options(spec, world_sizes=sizes, slots=slots)
    return ResumeOptions(
        checkpoint_id=parent.id,
        step=parent.step,
        options=tuple(
            ResumeOptionView(
                world_size=option.world_size,
                free_now=fits(
                    Demand(
                        job_id,
                        job.name,
                        option.world_size,
                        nodes=spec.resources.nodes,
                        device=spec.resources.device,
                        roots=roots_of(spec),
                    ),
                    offers,
                ),
                layouts=option.layouts,
                more=option.more,
                reason=option.reason,
            )
            for option in found
        ),
    )


def _prepare(
    context: Context, connection: Connection, job_id: str, request: ResumeRequest
) -> PreparedResume:
    job = job_row(connection, job_id)
    if job.state not in {*TERMINAL_JOB_STATES, JobState.RUNNING}:
        raise ConflictError(f"{job.name} is {job.state}; a job that has ended or runs can resume")
    baseline, last_step = _baseline(connection, job)
    parent, manifest = _parent(connection, job, request.checkpoint_id)
    target = work_out(baseline, request, slots=known_slots(connection))
    steps = target.effective.training.steps
    if job.state == JobState.SUCCEEDED and parent.step >= steps:
        raise ConflictError(
            f"{job.name} has succeeded at step {parent.step}; "
            "name an older checkpoint or more steps to go on"
        )
    if parent.step >= steps:
        raise InvalidRequestError.at(
            "/steps", f"steps={steps}, but {parent.id} stands at step {parent.step} already"
        )
    check_spec(context, context.secrets.restore(target.effective, job.env))
    _same_root(baseline, target, parent)
    check_world_size(context, target.plan.world_size, pointer="/world_size")
    saves_first = job.state == JobState.RUNNING and request.checkpoint_id is None
    return PreparedResume(job, baseline, target, parent, manifest, last_step, saves_first)


def _baseline(connection: Connection, job: Job) -> tuple[Baseline, int]:
    """Return what held so far, and the step that the newest attempt reached."""
    attempt_id = newest_attempt_id(connection, job.id)
    if attempt_id is None:
        return Baseline(job.spec, Overrides(), job.spec.layout()), 0
    held = (attempts.c.overrides, attempts.c.layout, attempts.c.device)
    columns = (*held, attempts.c.last_step, attempts.c.start_step)
    row = connection.execute(select(*columns).where(attempts.c.id == attempt_id)).one()
    reached = max(row.last_step, row.start_step)
    return Baseline(job.spec, row.overrides, row.layout, row.device), reached


def _parent(
    connection: Connection, job: Job, named: str | None
) -> tuple[ParentCheckpoint, Manifest | None]:
    """Return the checkpoint from which the job resumes, and its manifest where the job saved it.

    Raises:
        InvalidRequestError: the one that is named is none of the job's, or is not usable.
    """
    try:
        parent = parent_checkpoint(connection, job.id, named=named)
    except NotFoundError as error:
        raise InvalidRequestError.at("/checkpoint_id", error.detail) from None
    if not parent.own:
        return parent, None
    row = connection.execute(
        select(
            checkpoints.c.manifest, checkpoints.c.verification, checkpoints.c.deleting_since
        ).where(checkpoints.c.id == parent.id)
    ).one()
    if row.deleting_since is not None:
        raise InvalidRequestError.at("/checkpoint_id", f"{parent.id} is being deleted")
    if not parent.usable:
        found = f"{row.verification.fault}: {row.verification.message}"
        raise InvalidRequestError.at("/checkpoint_id", f"{parent.id} is damaged: {found}")
    return parent, row.manifest


def _same_root(baseline: Baseline, target: ResumeTarget, parent: ParentCheckpoint) -> None:
    before, after = baseline.effective.checkpoint.root, target.effective.checkpoint.root
    if parent.id is not None and before != after:
        raise InvalidRequestError.at(
            "/overrides/checkpoint/root",
            f"{after!r}, but the checkpoint to go on from lies in {before!r}",
        )


def _preview(prepared: PreparedResume) -> ResumePreview:
    parent, manifest = prepared.parent, prepared.manifest
    state = manifest.train_state if manifest is not None else None
    last = prepared.last_step
    return ResumePreview(
        plan=prepared.target.plan,
        checkpoint_id=parent.id,
        step=last if prepared.saves_first else parent.step,
        branch=parent.branch,
        saves_first=prepared.saves_first,
        changes=compare(
            prepared.baseline,
            prepared.target,
            last_step=last,
            state=state,
            saves_first=prepared.saves_first,
        ),
    )


def _resize(
    context: Context,
    connection: Connection,
    prepared: PreparedResume,
    pending: PendingLaunch,
    *,
    actor: Actor,
) -> None:
    """Stop the attempt that runs; its end queues the pending launch."""
    _say_so(context, connection, prepared, actor=actor)
    end_running(
        context,
        connection,
        prepared.job,
        DesiredState.STOP,
        actor=actor,
        reason=f"goes on with {prepared.target.plan.name}",
        pending=pending,
    )


def _queue(
    context: Context,
    connection: Connection,
    prepared: PreparedResume,
    pending: PendingLaunch,
    *,
    actor: Actor,
) -> None:
    job, planned = prepared.job, prepared.target.plan
    values: dict[str, Any] = {
        "pending": pending,
        "desired": DesiredState.RUN.value,
        "reason": None,
        "queued_at": context.now(),
        "not_before": None,
        "ended_at": None,
        "retries_used": 0,
        "priority": prepared.target.effective.resources.priority,
        "world_size": planned.world_size,
        "layout": planned.name,
    }
    again = job_to(job.id, JobState.QUEUED, only_from=TERMINAL_JOB_STATES, **values)
    _say_so(context, connection, prepared, again, actor=actor)


def _say_so(
    context: Context, connection: Connection, prepared: PreparedResume, *moves: Move, actor: Actor
) -> None:
    planned, parent = prepared.target.plan, prepared.parent
    where = f"from {parent.id}" if parent.id is not None else "from the start"
    move(
        context,
        connection,
        *moves,
        event=ResumeRequested(
            world_size=planned.world_size,
            layout=planned.name,
            checkpoint_id=parent.id,
            branch=parent.branch,
        ),
        message=f"Go on {where} with {planned.name}",
        actor=actor,
        subject=Subject(prepared.job.id),
    )


def _sizes(offers: Sequence[Offer]) -> list[int]:
    totals: dict[str, int] = {}
    for offer in offers:
        totals[offer.device] = totals.get(offer.device, 0) + offer.slots
    largest = min(max(totals.values(), default=0), LARGEST_OPTION)
    return [n for n in range(1, largest + 1) if n <= EVERY_SIZE_UP_TO or n % 8 == 0]
