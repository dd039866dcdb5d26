"""The action by which a person can remove the cause of a job's failure."""

from __future__ import annotations

from sqlalchemy import Connection

from server.core.database.rows import Job
from server.jobs.attempts.parent import parent_checkpoint
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.rest.jobs import NextAction
from trainyard.protocol.states import JobState
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.session.loss_watch import REMEDY, WARM_UP
from trainyard.spec.auto import explicit, resolved
from trainyard.spec.job import JobSpec

REPEATED = frozenset({FailureReason.NON_FINITE_LOSS, FailureReason.LOSS_SPIKE})
"""Reasons of failures caused by settings and data; a resume would repeat the same steps with the
same settings and data."""
OF_CODE = frozenset({FailureReason.PROGRAM_ERROR, FailureReason.PROGRAM_START_ERROR})
"""Reasons of failures caused by a program's code; a resume would run the same code, because packs
never change."""
BOUND = "resources.max_runtime_seconds"
"""Field that bounds the run time of an attempt; a resume after the bound needs a larger value."""


def next_action(connection: Connection, job: Job, attempt: AttemptView | None) -> NextAction | None:
    """Return the action that helps after the newest attempt failed; None if it did not fail.

    After a failure caused by settings and data, a resume would fail at the same step. So the action
    is a fork with a changed setting; the fork starts from the newest usable checkpoint before that
    step. Without such a checkpoint, for a program, and after a failure of packed code, the action
    is a new job. After any other failure, the action is a resume.
    """
    if job.state != JobState.FAILED or attempt is None or attempt.failure is None:
        return None
    failure, spec = attempt.failure, attempt.overrides.apply(job.spec)
    if spec.program is not None:
        return of_program(spec, failure)
    if failure.reason not in REPEATED:
        return resume_with(spec, failure)
    spec = resolved(spec, attempt.device, attempt.layout)
    field, setting = _changed(spec, failure)
    why = f"A resume takes the same steps with the same {field} and ends in the same way."
    origin = parent_checkpoint(connection, job.id, before_step=_latest(spec, failure))
    # A fresh start has the weights of step 0 anyway, but a fork has the weights of the other job.
    if origin.id is None or (origin.step == 0 and job.forked_from is None):
        text = f"{why} No checkpoint lies between step 0 and the failure: submit a new job."
        return NextAction(verb="submit", text=text, field=field, setting=setting)
    text, step = f"{why} Fork step {origin.step:,} with another {field}.", origin.step
    return NextAction(
        verb="fork", text=text, field=field, setting=setting, checkpoint_id=origin.id, step=step
    )


def _latest(spec: JobSpec, failure: Failure) -> int:
    """Return the step before which a fork must start to avoid the failure.

    The new setting must apply before the failed step, because the loss of a step depends on the
    weights before the step. The guard against spikes also needs `WARM_UP` logged losses.
    """
    before = failure.step or 0
    if failure.reason != FailureReason.LOSS_SPIKE:
        return before - 1
    return before - WARM_UP * explicit(spec.training.log_every_steps)


def _changed(spec: JobSpec, failure: Failure) -> tuple[str, str]:
    """Return the field to change, and a first value to try."""
    if (
        failure.reason == FailureReason.LOSS_SPIKE
        and spec.guard.loss_spike != "rollback"
        and spec.checkpoint.preflight  # a rollback of the fork may go back to the preflight save
    ):
        return "guard.loss_spike", "guard.loss_spike=rollback"
    return "optimizer.lr", f"optimizer.lr={spec.optimizer.lr / 2:g}"


def of_program(spec: JobSpec, failure: Failure) -> NextAction:
    """Return the action after a program's failure; programs cannot be forked."""
    program = spec.program
    assert program is not None
    if failure.reason in REPEATED:
        return NextAction(verb="submit", text=REMEDY.text, field=REMEDY.field)
    if failure.reason in OF_CODE and program.code is not None and program.code.pack is not None:
        text = "The packed code stays as it is: mend the program and submit it again."
        return NextAction(verb="submit", text=text, field="program.")
    return resume_with(spec, failure)


def resume_with(spec: JobSpec, failure: Failure) -> NextAction:
    """Return a resume as the action; it has a new setting only if it must raise the run time."""
    remedy = failure.remedy
    aim = None if remedy.resume == "earlier" else remedy.resume
    setting = None
    if remedy.field == BOUND and spec.resources.max_runtime_seconds is not None:
        setting = f"{BOUND}={2 * spec.resources.max_runtime_seconds:g}"
    text, field = remedy.text, None if setting else remedy.field
    return NextAction(verb="resume", text=text, aim=aim, field=field, setting=setting)
