"""The action that helps a job that failed: one under which something is different."""

from __future__ import annotations

from sqlalchemy import Connection

from server.attempts.parent import parent_checkpoint
from server.database.rows import Job
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.rest.jobs import NextAction
from trainyard.protocol.states import JobState
from trainyard.run.failures import Failure, FailureReason
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.program import ProgramSection

REPEATED = frozenset({FailureReason.NON_FINITE_LOSS, FailureReason.LOSS_SPIKE})
"""Reasons that follow from settings and data: a resume takes the same steps with both."""
OF_CODE = frozenset({FailureReason.PROGRAM_ERROR, FailureReason.PROGRAM_START_ERROR})
"""Reasons that follow from a program's code, which stays as it is where it was packed."""
ARGUMENTS = "program.arguments"


def next_action(connection: Connection, job: Job, attempt: AttemptView | None) -> NextAction | None:
    """Return what helps after the failure of a job's newest attempt; None where it did not fail.

    A failure that follows from settings and data comes again at the same step of a resume: a fork
    of the newest usable checkpoint from before it helps, with another setting, or a new job where
    there is no such checkpoint. The same holds for packed code. All else is resumed.
    """
    failure = None if attempt is None else attempt.failure
    if job.state != JobState.FAILED or failure is None:
        return None
    spec = job.spec
    if spec.program is not None:
        return of_program(spec.program, failure)
    if failure.reason not in REPEATED:
        return _resume(failure)
    field, setting = _changed(spec, failure)
    why = f"A resume takes the same steps with the same {field} and ends in the same way."
    origin = parent_checkpoint(connection, job.id, before_step=failure.step or 0)
    # A fresh start has the weights of step 0 anyway; a fork has those of the other job.
    if origin.id is None or (origin.step == 0 and job.forked_from is None):
        text = f"{why} No checkpoint lies between step 0 and the failure: submit a new job."
        return NextAction(verb="submit", text=text, field=field, setting=setting)
    return NextAction(
        verb="fork",
        text=f"{why} Fork step {origin.step:,} with another {field}.",
        field=field,
        setting=setting,
        checkpoint_id=origin.id,
        step=origin.step,
    )


def _changed(spec: JobSpec, failure: Failure) -> tuple[str, str]:
    """Return the field to change, and a setting to begin with."""
    if failure.reason == FailureReason.LOSS_SPIKE and spec.guard.loss_spike != "rollback":
        return "guard.loss_spike", "guard.loss_spike=rollback"
    return "optimizer.lr", f"optimizer.lr={spec.optimizer.lr / 2:g}"


def of_program(program: ProgramSection, failure: Failure) -> NextAction:
    """Return what helps after the failure of a program, which no fork begins from."""
    if failure.reason in REPEATED:
        text = (
            "A resume repeats these steps, unless the program makes them differ: submit a new job "
            f"with other {ARGUMENTS}."
        )
        return NextAction(verb="submit", text=text, field=ARGUMENTS)
    if failure.reason in OF_CODE and program.code is not None and program.code.pack is not None:
        text = "The packed code stays as it is: mend the program and submit it again."
        return NextAction(verb="submit", text=text, field="program.")
    return _resume(failure)


def _resume(failure: Failure) -> NextAction:
    remedy = failure.remedy
    aim = None if remedy.resume == "earlier" else remedy.resume
    return NextAction(verb="resume", text=remedy.text, aim=aim, field=remedy.field)
