"""An unloadable checkpoint: its mark, and the start of the next attempt."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from server.core.context import Context
from server.core.database.tables import checkpoints, events
from server.jobs.jobs.fork import fork
from server.jobs.jobs.resume import resume
from tests.actors import ADA
from tests.server.harness import AnyRow, Harness, Supervisor
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import JobState
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.failures import BadWindow, FailureReason, LoadFailure

BROKEN = FailureReason.CHECKPOINT_ERROR
DAMAGED = CheckpointFault.FILE_DAMAGED


def again(harness: Harness, job_id: str) -> Supervisor:
    harness.clock.advance(3600)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    return supervisor


def refuse(supervisor: Supervisor, fault: CheckpointFault | None = DAMAGED) -> str:
    """End an attempt that could not load its checkpoint; return the checkpoint's id."""
    point = supervisor.reply.attempt.resume
    assert point is not None
    load = LoadFailure(checkpoint_id=point.checkpoint_id, fault=fault)
    supervisor.end("failed", BROKEN, load=load)
    return point.checkpoint_id


def row(context: Context, checkpoint_id: str) -> AnyRow:
    with context.database.read() as connection:
        query = select(checkpoints).where(checkpoints.c.id == checkpoint_id)
        return connection.execute(query).one()


@pytest.fixture
def saved(harness: Harness) -> tuple[str, Supervisor]:
    """A job that saved steps 0, 4 and 8, failed, and is resumed from the newest."""
    harness.add_node()
    job_id, (first,) = harness.running()
    for step in (0, 4, 8):
        harness.commit_checkpoint(job_id, step)
    first.train(8)
    first.end("failed", FailureReason.TRAINER_ERROR)
    return job_id, again(harness, job_id)


def test_proved_damage_is_marked_and_the_next_older_one_is_loaded(
    harness: Harness, context: Context, saved: tuple[str, Supervisor]
) -> None:
    job_id, second = saved
    used = harness.job(job_id).retries_used
    assert refuse(second) == f"{job_id}.a1.step-8"
    found = row(context, f"{job_id}.a1.step-8")
    assert (found.verified, found.verification.fault) == (False, DAMAGED)
    assert found.verification.message == f"checkpoint_error on {second.node}"
    assert found.checked_at is not None
    job = harness.job(job_id)
    assert (job.state, job.retries_used, job.not_before) == (JobState.QUEUED, used, None)
    assert job.reason.startswith(f"continues from {job_id}.a1.step-4 after checkpoint_error")
    with context.database.read() as connection:
        told = connection.execute(select(events).where(events.c.kind == "checkpoint_damaged")).one()
    assert told.data == {"checkpoint_id": f"{job_id}.a1.step-8", "fault": "file_damaged"}

    third = again(harness, job_id)
    assert refuse(third) == f"{job_id}.a1.step-4"
    fourth = again(harness, job_id)
    assert harness.attempt(job_id).start_step == 0
    assert refuse(fourth) == f"{job_id}.a1.step-0"
    job = harness.job(job_id)
    assert job.state == JobState.FAILED
    assert job.reason.endswith("The lineage has no older checkpoint that is usable.")


def test_what_storage_refuses_is_tried_again_on_the_budget_and_never_marked(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (first,) = harness.running(retry={"max_retries": 2, "on": ["trainer_error"]})
    for step in (0, 4):
        harness.commit_checkpoint(job_id, step)
    first.end("failed", FailureReason.TRAINER_ERROR)
    assert refuse(again(harness, job_id), None) == f"{job_id}.a1.step-4"
    assert harness.job(job_id).reason.startswith("retry 2 of 2")
    assert refuse(again(harness, job_id), None) == f"{job_id}.a1.step-4"
    assert harness.job(job_id).state == JobState.FAILED
    assert row(context, f"{job_id}.a1.step-4").verified is not False
    assert "checkpoint_damaged" not in harness.kinds(job_id)


@pytest.mark.parametrize("passes_first", [False, True])
def test_a_checkpoint_that_a_person_named_is_not_replaced(
    harness: Harness, context: Context, saved: tuple[str, Supervisor], passes_first: bool
) -> None:
    job_id, second = saved
    second.end("failed", FailureReason.DATA_ERROR)
    named = f"{job_id}.a1.step-4"
    resume(context, job_id, ResumeRequest(checkpoint_id=named), actor=ADA)
    third = again(harness, job_id)
    if passes_first:  # a retry keeps it
        refuse(third, None)
        third = again(harness, job_id)
    assert refuse(third) == named
    job = harness.job(job_id)
    assert job.state == JobState.FAILED
    assert f"{named} was named, so no other one replaces it" in job.reason
    assert row(context, named).verified is False


def test_what_a_named_one_led_to_is_replaced(
    harness: Harness, context: Context, saved: tuple[str, Supervisor]
) -> None:
    job_id, second = saved
    second.end("failed", FailureReason.DATA_ERROR)
    resume(context, job_id, ResumeRequest(checkpoint_id=f"{job_id}.a1.step-4"), actor=ADA)
    third = again(harness, job_id)
    harness.commit_checkpoint(job_id, 6)
    third.end("failed", FailureReason.TRAINER_ERROR)
    assert refuse(again(harness, job_id)) == f"{job_id}.a3.step-6"
    assert refuse(again(harness, job_id)) == f"{job_id}.a1.step-4"
    assert refuse(again(harness, job_id)) == f"{job_id}.a1.step-0"


def test_windows_that_were_left_out_stay_left_out(harness: Harness) -> None:
    harness.add_node()
    job_id, (first,) = harness.running()
    for step in (0, 4):
        harness.commit_checkpoint(job_id, step)
    first.train(8)
    bad = BadWindow(start=96, end=128, first_step=7)
    first.end("failed", FailureReason.LOSS_SPIKE, bad_window=bad)
    second = again(harness, job_id)
    assert refuse(second) == f"{job_id}.a1.step-4"
    third = again(harness, job_id).reply.attempt
    assert third.resume is not None
    assert third.resume.checkpoint_id == f"{job_id}.a1.step-0"
    assert third.skip == ((96, 128),)


@pytest.mark.parametrize("fault", [DAMAGED, None])
def test_a_report_of_another_checkpoint_marks_nothing(
    harness: Harness, context: Context, saved: tuple[str, Supervisor], fault: Any
) -> None:
    job_id, second = saved
    other = LoadFailure(checkpoint_id=f"{job_id}.a1.step-4", fault=fault)
    second.end("failed", BROKEN, load=other)
    assert harness.job(job_id).state == JobState.FAILED
    assert row(context, f"{job_id}.a1.step-4").verified is not False


def test_a_fork_whose_origin_is_damaged_fails(
    harness: Harness, context: Context, saved: tuple[str, Supervisor]
) -> None:
    job_id, second = saved
    second.end("failed", FailureReason.DATA_ERROR)
    origin = f"{job_id}.a1.step-8"
    _, forked = fork(context, origin, ForkRequest(), actor=ADA)
    assert refuse(again(harness, forked)) == origin
    assert harness.job(forked).state == JobState.FAILED
    assert "was named" in harness.job(forked).reason
    assert row(context, origin).verified is False


def test_a_fork_goes_back_to_its_origin(
    harness: Harness, context: Context, saved: tuple[str, Supervisor]
) -> None:
    job_id, second = saved
    second.end("failed", FailureReason.DATA_ERROR)
    origin = f"{job_id}.a1.step-8"
    _, forked = fork(context, origin, ForkRequest(), actor=ADA)
    first = again(harness, forked)
    harness.commit_checkpoint(forked, 9)
    first.end("failed", FailureReason.TRAINER_ERROR)
    assert refuse(again(harness, forked)) == f"{forked}.a1.step-9"
    assert refuse(again(harness, forked)) == origin
