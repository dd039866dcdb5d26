"""A guard that requests a rollback, from the failure to the attempt that omits the window."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from server.core.context import Context
from server.core.database.tables import events
from server.jobs.jobs.resume import resume
from tests.actors import ADA
from tests.server.harness import AnyRow, Harness, Supervisor
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import JobState
from trainyard.run.failures import BadWindow, FailureReason

# The default global batch holds 16 sequences: steps 7 and 8, and a checkpoint from before them.
BAD = BadWindow(start=96, end=128, first_step=7)
SPIKE = FailureReason.LOSS_SPIKE


def again(harness: Harness, job_id: str) -> Supervisor:
    """Wait for the backoff, place the attempt and claim it."""
    harness.clock.advance(3600)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    return supervisor


def failed_at_8(harness: Harness, *saved: int, **sections: Any) -> tuple[str, AnyRow]:
    harness.add_node()
    job_id, (supervisor,) = harness.running(**sections)
    for step in saved:
        harness.commit_checkpoint(job_id, step)
    supervisor.train(8)
    supervisor.end("failed", SPIKE, bad_window=BAD)
    return job_id, harness.job(job_id)


def test_it_goes_back_behind_the_damage_and_leaves_it_out(
    harness: Harness, context: Context
) -> None:
    job_id, job = failed_at_8(harness, 0, 4, 6)
    assert (job.state, job.retries_used) == (JobState.QUEUED, 1)
    assert harness.kinds(job_id)[-3:] == ["attempt_ended", "queued", "rolled_back"]
    with context.database.read() as connection:
        told = connection.execute(select(events).where(events.c.kind == "rolled_back")).one()
    assert told.message == (
        f"Back to step 6 ({job_id}.a1.step-6) after loss_spike: 32 sequences, [96, 128), are left "
        "out from now on"
    )
    assert told.data["window"] == [96, 128]
    reply = again(harness, job_id).reply
    assert reply.attempt.skip == ((96, 128),)
    assert reply.attempt.resume is not None
    assert reply.attempt.resume.checkpoint_id == f"{job_id}.a1.step-6"


def test_a_checkpoint_from_within_the_window_is_passed_over(harness: Harness) -> None:
    job_id, job = failed_at_8(harness, 4, 7)
    assert job.pending.checkpoint_id == f"{job_id}.a1.step-4"


@pytest.mark.parametrize(
    ("saved", "sections", "why"),
    [
        ((7,), {}, "No checkpoint lies before step 7"),
        ((4,), {"retry": {"max_retries": 0}}, "All rollbacks are used up"),
    ],
)
def test_where_it_cannot_go_back_the_job_fails(
    harness: Harness, saved: tuple[int, ...], sections: dict[str, Any], why: str
) -> None:
    job_id, job = failed_at_8(harness, *saved, **sections)
    assert job.state == JobState.FAILED
    assert why in job.reason
    assert "rolled_back" not in harness.kinds(job_id)


def test_no_window_is_left_out_twice(harness: Harness) -> None:
    job_id, _ = failed_at_8(harness, 4)
    again(harness, job_id).end("failed", SPIKE, bad_window=BAD)
    job = harness.job(job_id)
    assert job.state == JobState.FAILED
    assert "A rollback left this window out before" in job.reason


def test_every_later_attempt_leaves_out_what_an_earlier_one_did(
    harness: Harness, context: Context
) -> None:
    """Also when the attempt that rolled back ends before it has saved."""
    job_id, _ = failed_at_8(harness, 4)
    second = again(harness, job_id)
    second.train(5)
    second.end("failed", FailureReason.HANG)
    third = again(harness, job_id)
    assert third.reply.attempt.skip == ((96, 128),)
    other = BadWindow(start=160, end=176, first_step=9)
    third.train(9)
    third.end("failed", FailureReason.NON_FINITE_LOSS, bad_window=other)
    job = harness.job(job_id)
    assert job.state == JobState.FAILED, "two retries were the budget"
    resume(context, job_id, ResumeRequest(), actor=ADA)
    fourth = again(harness, job_id)
    assert fourth.reply.attempt.skip == ((96, 128),), "a person decides what to do about the other"
