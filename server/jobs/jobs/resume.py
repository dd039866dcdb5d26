"""Resume of a job: options, preview and pending launch (docs/lifecycle-resume.md, 27-29)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, update

from server.api.auth.endings import write_as
from server.cluster.named_secrets.secret_uses import SecretUse, check_use
from server.cluster.nodes.capacity import read_offers
from server.cluster.nodes.predictor import predictor_of
from server.cluster.placement.demand import Demand, Offer
from server.cluster.placement.fit import fits
from server.core.context import Context
from server.core.database.rows import Attempt, Checkpoint, Job
from server.core.database.tables import attempts, checkpoints, jobs
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.events.store import NewEvent, append_event
from server.core.lifecycle import Move, job_to, lock_own_job, move
from server.core.people.unix_accounts import account_of, check_may_act_for
from server.core.subject import SCHEDULER, Actor, Subject
from server.core.visibility.scope import Scope
from server.jobs.attempts.launch import newest_attempt_id
from server.jobs.attempts.parent import ParentCheckpoint, parent_checkpoint
from server.jobs.jobs.checks import (
    check_code,
    check_spec,
    check_world_size,
    known_slots,
    roots_of,
)
from server.jobs.jobs.comparison import compare
from server.jobs.jobs.next_attempt import Baseline, NextAttempt, plan_next_attempt
from server.jobs.jobs.queries import job_row
from server.jobs.jobs.service import end_running
from trainyard.base.problems import Problem
from trainyard.planner.plan import resume_options
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.event_data import ResumeRequested
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.rest.resume import (
    ResumeOptions,
    ResumeOptionView,
    ResumePreview,
    ResumeRequest,
)
from trainyard.protocol.states import TERMINAL_JOB_STATES, AttemptCause, DesiredState, JobState
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.spec.layout import Layout

EVERY_SIZE_UP_TO = 64
"""World size up to which resume options list every size; larger sizes are multiples of eight,
because most nodes have eight GPUs."""
LARGEST_OPTION = 1024
"""Largest world size in resume options; a request may name a larger world size."""


@dataclass(frozen=True)
class PreparedResume:
    """A legal resume that is not stored yet."""

    job: Job
    baseline: Baseline
    next: NextAttempt
    parent: ParentCheckpoint
    manifest: Manifest | ProgramManifest | None
    """Manifest of the parent checkpoint; None if the job did not save that checkpoint itself."""
    last_step: int
    """Step that the newest attempt reached."""
    saves_first: bool
    """Whether the running attempt first saves and stops, and the job then resumes from this
    save."""


def options(context: Context, job_id: str, *, scope: Scope) -> ResumeOptions:
    """Return the world sizes that fit on the online nodes, each with its legal layouts.

    Raises:
        NotFoundError: there is no such job.
        ConflictError: the job was imported.
    """
    with context.database.read() as connection:
        job = job_row(connection, job_id, scope=scope)
        _refuse_imported(job)
        baseline, _ = _baseline(connection, job)
        parent = parent_checkpoint(connection, job.id)
        offers = read_offers(connection, without_job=job_id)
        slots = known_slots(connection)
        predictor = predictor_of(connection, baseline.effective)
        account = account_of(connection, job.owner_id)
    spec = baseline.effective
    demand = Demand(
        1,
        nodes=spec.resources.nodes,
        device=spec.resources.device,
        roots=roots_of(spec),
        node_selector=tuple(sorted(spec.resources.node_selector.items())),
        exclude_nodes=tuple(sorted({*spec.resources.exclude_nodes})),
        account=account,
    )
    views = []
    sizes = _world_sizes(offers)
    for option in resume_options(spec, world_sizes=sizes, slots=slots, predictor=predictor):
        units = {given.layout.node_units for given in option.layouts} or {()}
        of_size = replace(demand, world_size=option.world_size)
        view = ResumeOptionView(
            world_size=option.world_size,
            free_now=any(fits(replace(of_size, units=each), offers) for each in units),
            layouts=option.layouts,
            more=option.more,
            reason=option.reason,
        )
        views.append(view)
    return ResumeOptions(
        checkpoint_id=parent.id,
        step=parent.step,
        options=tuple(views),
        calibration=None if predictor is None else predictor.calibration,
    )


def preview(
    context: Context, job_id: str, request: ResumeRequest, *, scope: Scope
) -> ResumePreview:
    """Return the effect of a resume, and store nothing.

    Raises:
        NotFoundError: there is no such job.
        ConflictError: the state of the job forbids a resume, or a resize would change nothing.
        InvalidRequestError: fields of the request disagree, or the job cannot run with them.
    """
    with context.database.read() as connection:
        prepared = _prepare(context, connection, job_id=job_id, request=request, scope=scope)
        return _preview(prepared)


def resume(
    context: Context,
    job_id: str,
    request: ResumeRequest,
    *,
    actor: Actor,
    running: str | None = None,
    note: Callable[[Connection, Job, Layout], None] | None = None,
) -> ResumePreview:
    """Queue the next attempt of a job that has ended, or resize a running job; or only preview it.

    A running job first saves and stops; until then, the job's row holds the pending launch. The
    parent checkpoint of the preview is stored only if the request names it. Otherwise placement
    chooses the parent checkpoint again, because the catalog may change while the job waits.

    `running` is the id of an attempt that must still run. `note` is called in the same transaction,
    with the unchanged job and with the layout of the next attempt. With `dry_run`, nothing is
    stored, and `running` is not checked.

    Raises:
        NotFoundError: there is no such job.
        ConflictError: the job's state forbids a resume, a resize would change nothing, or the
            attempt `running` is no longer running.
        InvalidRequestError: fields of the request disagree, or the job cannot run with them.
        ForbiddenError: the job brings code, uses secrets or runs under the Unix account of its
            owner, and the actor may not start it.
    """
    if request.dry_run:
        return preview(context, job_id, request, scope=actor.scope)
    with write_as(context, actor) as connection:
        # First, so that the state stays until the commit.
        lock_own_job(connection, job_id, scope=actor.scope, permission=Permission.JOBS_WRITE)
        if running is not None:
            _check_runs(connection, job_id, running, scope=actor.scope)
        prepared = _prepare(context, connection, job_id=job_id, request=request, scope=actor.scope)
        job, runs = prepared.job, prepared.job.state == JobState.RUNNING
        check_code(
            actor, context.secrets.restore(prepared.next.effective, job.env), project=job.project
        )
        check_use(context, connection, SecretUse.of_job(job), actor=actor, token_id=job.token_id)
        check_may_act_for(connection, job.owner_id, actor=actor)
        pending = PendingLaunch(
            cause=AttemptCause.RESIZE if runs else AttemptCause.RESUME,
            actor=actor.name,
            overrides=prepared.next.overrides,
            layout=prepared.next.plan.layout,
            checkpoint_id=request.checkpoint_id,
            allow_code_change=request.allow_code_change,
        )
        if actor != SCHEDULER:  # stored apart, as an elastic job may later change size
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(chosen=pending))
        if note is not None:
            note(connection, job, pending.layout)
        event = _event(prepared, actor)
        if runs:  # the end of the attempt queues the pending launch
            append_event(context, connection, event)
            why, stop = f"resize to {prepared.next.plan.name}", DesiredState.STOP
            end_running(
                context, connection, job=job, desired=stop, actor=actor, reason=why, pending=pending
            )
        else:  # from here on the launch is placed like a submission
            move(context, connection, event, _queued(context, prepared, pending))
        return _preview(prepared)


def _prepare(
    context: Context, connection: Connection, *, job_id: str, request: ResumeRequest, scope: Scope
) -> PreparedResume:
    """Check a request, and return the prepared resume without storing anything."""
    job = job_row(connection, job_id, scope=scope, permission=Permission.JOBS_WRITE)
    _refuse_imported(job)
    if job.state not in {*TERMINAL_JOB_STATES, JobState.RUNNING}:
        raise ConflictError(f"{job.name} is {job.state}; a job that has ended or runs can resume")
    baseline, last_step = _baseline(connection, job)
    parent, manifest = _parent(connection, job, request.checkpoint_id)
    following = plan_next_attempt(baseline, request, slots=known_slots(connection))
    steps = following.effective.total_steps
    runs_program = following.effective.program is not None
    if job.state == JobState.SUCCEEDED and runs_program and parent.id is None:
        raise ConflictError(
            f"{job.name} has succeeded, and would begin again: submit it as a new job"
        )
    if job.state == JobState.SUCCEEDED and steps is not None and parent.step >= steps:
        raise ConflictError(
            f"{job.name} has succeeded at step {parent.step}; "
            "name an older checkpoint or more steps to resume it"
        )
    if steps is not None and parent.step >= steps:
        raise InvalidRequestError.at(
            "/steps",
            f"steps={steps}, but {parent.id or 'the job'} stands at step {parent.step} already",
        )
    if request.checkpoint_id is None and not request.allow_code_change:
        _refuse_what_runs(job, baseline, following)
    check_spec(context, context.secrets.restore(following.effective, job.env))
    before, after = baseline.effective.checkpoint.root, following.effective.checkpoint.root
    if parent.id is not None and before != after:
        detail = f"{after!r}, but the parent checkpoint lies in {before!r}"
        raise InvalidRequestError.at("/overrides/checkpoint/root", detail)
    check_world_size(context, following.plan.world_size, pointer="/world_size")
    # The server does not know what a program saves when it stops.
    saves_first = (
        job.state == JobState.RUNNING and request.checkpoint_id is None and not runs_program
    )
    if runs_program and parent.id is None:
        following = _from_the_start(following)
    return PreparedResume(job, baseline, following, parent, manifest, last_step, saves_first)


def _refuse_imported(job: Job) -> None:
    if job.imported_from is not None:
        raise ConflictError(
            f"{job.name} was imported from {job.imported_from}: it ran elsewhere, and cannot be "
            "resumed here"
        )


def _refuse_what_runs(job: Job, baseline: Baseline, following: NextAttempt) -> None:
    """Refuse a resize of a running job that changes nothing."""
    ordered = job.spec.layout() if job.chosen is None else job.chosen.layout
    same = following.overrides == baseline.overrides and following.plan.layout == baseline.layout
    # For an elastic job that has shrunk, the present size is a change, because the job would no
    # longer grow back.
    if job.state == JobState.RUNNING and same and ordered == baseline.layout:
        raise ConflictError(
            f"{job.name} runs on {following.plan.name} with these settings already; name what "
            "changes, an older checkpoint, or stop it first"
        )


def _from_the_start(following: NextAttempt) -> NextAttempt:
    """Return the settings with a warning that the program starts without a checkpoint."""
    program = following.effective.program
    never = program is not None and program.resume == "never"
    why = "resume='never'" if never else "the job has no checkpoint"
    warning = Problem(
        pointer="/program/resume",
        detail=f"{why}: the program begins again, unless it finds by itself what it saved",
    )
    warned = following.plan.model_copy(update={"warnings": (warning, *following.plan.warnings)})
    return replace(following, plan=warned)


def _check_runs(connection: Connection, job_id: str, attempt_id: str, *, scope: Scope) -> None:
    job = job_row(connection, job_id, scope=scope)
    if job.state != JobState.RUNNING:
        raise ConflictError(f"{job.name} is {job.state}; only a job that runs is resized")
    if newest_attempt_id(connection, job_id) != attempt_id:
        raise ConflictError(f"{job.name} runs attempt {job.attempt} by now: the resize is outdated")


def _baseline(connection: Connection, job: Job) -> tuple[Baseline, int]:
    """Return the settings and the last step of the newest attempt."""
    newest = Attempt.select().where(attempts.c.job_id == job.id, attempts.c.number == job.attempt)
    row = Attempt.one_or_none(connection, newest)
    if row is None:
        overrides = Overrides().with_priority(job.spec, job.priority)
        return Baseline(job.spec, overrides, job.spec.layout()), job.fork_step or 0
    overrides = row.overrides.with_priority(job.spec, job.priority)
    baseline = Baseline(job.spec, overrides, row.layout, row.device)
    return baseline, max(row.last_step, row.start_step)


def _parent(
    connection: Connection, job: Job, named: str | None
) -> tuple[ParentCheckpoint, Manifest | ProgramManifest | None]:
    """Return the parent checkpoint, and its manifest if the job itself saved it.

    Raises:
        InvalidRequestError: the named checkpoint belongs to another job, is damaged, or is being
            deleted.
    """
    try:
        parent = parent_checkpoint(connection, job.id, named=named)
    except NotFoundError as error:
        raise InvalidRequestError.at("/checkpoint_id", error.detail) from None
    if not parent.own:
        return parent, None
    row = Checkpoint.one(connection, Checkpoint.select().where(checkpoints.c.id == parent.id))
    if row.deleting_since is not None:
        raise InvalidRequestError.at("/checkpoint_id", f"{parent.id} is being deleted")
    if not parent.usable:
        what = row.verification
        found = "unknown" if what is None else f"{what.fault}: {what.message}"
        raise InvalidRequestError.at("/checkpoint_id", f"{parent.id} is damaged: {found}")
    return parent, row.manifest


def _preview(prepared: PreparedResume) -> ResumePreview:
    parent, manifest = prepared.parent, prepared.manifest
    return ResumePreview(
        plan=prepared.next.plan,
        checkpoint_id=parent.id,
        step=prepared.last_step if prepared.saves_first else parent.step,
        branch=parent.branch,
        saves_first=prepared.saves_first,
        changes=compare(
            prepared.baseline,
            prepared.next,
            last_step=prepared.last_step,
            parent_step=parent.step,
            state=manifest.train_state if isinstance(manifest, Manifest) else None,
            saves_first=prepared.saves_first,
        ),
    )


def _queued(context: Context, prepared: PreparedResume, pending: PendingLaunch) -> Move:
    """Return the state change of the job to `queued`."""
    job, plan = prepared.job, prepared.next.plan
    return job_to(
        job.id,
        JobState.QUEUED,
        only_from=TERMINAL_JOB_STATES,  # live states are legal only for retries
        pending=pending,
        desired=DesiredState.RUN.value,
        reason=None,
        queued_at=context.now(),
        not_before=None,
        ended_at=None,
        retries_used=0,  # the retry budget counts from the last start by a person
        priority=prepared.next.effective.resources.priority,
        world_size=plan.world_size,
        min_world_size=prepared.next.effective.resources.min_world_size,
        max_world_size=prepared.next.effective.resources.max_world_size,
        layout=plan.name,
    )


def _event(prepared: PreparedResume, actor: Actor) -> NewEvent:
    plan, parent = prepared.next.plan, prepared.parent
    data = ResumeRequested(
        world_size=plan.world_size,
        layout=plan.name,
        checkpoint_id=parent.id,
        branch=parent.branch,
    )
    message = f"Resume from {parent.id or 'the start'} with {plan.name}"
    return NewEvent(data, actor, Subject(prepared.job.id), message)


def _world_sizes(offers: Sequence[Offer]) -> list[int]:
    """Return the world sizes to list, up to the largest number of slots of one kind of device."""
    totals: Counter[str] = Counter()
    for offer in offers:
        totals[offer.device] += offer.slots
    largest = min(max(totals.values(), default=0), LARGEST_OPTION)
    return [n for n in range(1, largest + 1) if n <= EVERY_SIZE_UP_TO or n % 8 == 0]
