"""Bounds on the run time: an attempt saves and leaves; its job continues if it progressed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from server.cluster.nodes.capacity import read_capacity
from server.core.lifecycle import lock_job
from server.jobs.jobs.resume import resume
from server.scheduler.rounds import drain
from server.scheduler.rounds.drain import FAILED_PAUSE, order_isolation, run_bounds
from server.scheduler.rounds.round import Placer
from tests.actors import ADA
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.scheduler.rounds.leaving import leaves
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import DesiredState, JobState
from trainyard.run.failures import FailureReason
from trainyard.spec.sections.resources import ResourcesSection

BOUND = 60.0
REASON = "its max_runtime_seconds=60 are over"
ENDS = (
    f"preempted: {REASON}. It saved no step more than it began with, so another attempt would get "
    "no further. Resume with a longer resources.max_runtime_seconds, or without one."
)


def bounded(**resources: Any) -> dict[str, Any]:
    """Return the sections of a job with a bound on its attempts."""
    return {"resources": {"max_runtime_seconds": BOUND} | resources, "retry": {"max_retries": 0}}


def stop_overdue(harness: Harness) -> int:
    """Run one round of the bounds; return the number of attempts that it orders to leave."""
    return run_bounds(harness.context, order_isolation(harness.context))


def test_it_saves_leaves_and_continues_at_its_bound(harness: Harness) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.launched(**bounded())
    harness.clock.advance(BOUND - 1)
    supervisor.train(5)
    assert stop_overdue(harness) == 0
    harness.clock.advance(1)
    assert stop_overdue(harness) == 1
    assert stop_overdue(harness) == 0, "the order is given once"
    saved = leaves(harness, job_id, supervisor, reason=REASON)
    assert harness.place() == 1
    (again,) = harness.claim_all(job_id)
    assert again.reply.attempt.resume is not None
    assert again.reply.attempt.resume.checkpoint_id == saved
    harness.clock.advance(BOUND)
    assert stop_overdue(harness) == 1, "each attempt has the bound anew"


def test_without_a_further_step_the_job_ends_with_the_reason(harness: Harness) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.launched(**bounded())
    supervisor.train(5)
    harness.clock.advance(BOUND)
    stop_overdue(harness)
    leaves(harness, job_id, supervisor, reason=REASON)
    harness.place()
    (again,) = harness.claim_all(job_id)
    again.train(8)
    harness.clock.advance(BOUND)
    stop_overdue(harness)
    harness.commit_checkpoint(job_id, 8)  # where it began
    again.end("stopped")
    job = harness.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, ENDS)


@BRINGS_CODE
@pytest.mark.parametrize(
    ("resumes", "saves", "state"),
    [
        ("never", False, JobState.FAILED),
        ("never", True, JobState.FAILED),
        ("same_world_size", False, JobState.FAILED),
        ("same_world_size", True, JobState.QUEUED),
    ],
)
def test_a_program_continues_only_from_a_checkpoint(
    harness: Harness, resumes: str, saves: bool, state: JobState
) -> None:
    harness.add_node("a")
    program = {"command": ["train.py"], "code": {"folder": "data:mine"}, "resume": resumes}
    job_id, (supervisor,) = harness.launched(program=program, **bounded())
    supervisor.train(1)
    harness.clock.advance(BOUND)
    assert stop_overdue(harness) == 1
    if saves:
        harness.commit_checkpoint(job_id, 1)
    supervisor.end("stopped")
    job = harness.job(job_id)
    assert job.state == state
    if state == JobState.FAILED:
        assert job.reason == ENDS


def test_what_ends_by_itself_on_the_way_keeps_its_outcome(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    (done, (ends,)), (broken, (fails,)) = (harness.launched(**bounded()) for _ in range(2))
    harness.clock.advance(BOUND)
    assert stop_overdue(harness) == 2
    ends.end("succeeded")
    fails.end("failed", FailureReason.DATA_ERROR)
    assert harness.job(done).state == JobState.SUCCEEDED
    job = harness.job(broken)
    assert (job.state, job.reason.partition(":")[0]) == (JobState.FAILED, "data_error")


def test_an_error_of_one_keeps_no_other_beyond_its_bound(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.add_node("a", slots=2)
    (first, _), (second, _) = (harness.launched(**bounded()) for _ in range(2))
    lock = lock_job

    def fails(connection: Connection, job_id: str) -> None:
        if job_id == first:
            raise ValueError("broken")
        lock(connection, job_id)

    monkeypatch.setattr(drain, "lock_job", fails)
    harness.clock.advance(BOUND)
    isolation = order_isolation(harness.context)
    run_bounds(harness.context, isolation)
    assert harness.job(second).state == JobState.STOPPING
    assert harness.job(first).state == JobState.STARTING
    assert "broken" in caplog.text
    monkeypatch.setattr(drain, "lock_job", lock)
    run_bounds(harness.context, isolation)
    assert harness.job(first).state == JobState.STARTING, "it is left out for a while"
    harness.clock.advance(FAILED_PAUSE.total_seconds())
    run_bounds(harness.context, isolation)
    assert harness.job(first).state == JobState.STOPPING


def test_an_attempt_that_no_node_has_claimed_is_left_alone(harness: Harness) -> None:
    harness.add_node("a")
    job_id = harness.submit(**bounded())
    assert harness.place() == 1
    harness.clock.advance(BOUND)
    assert stop_overdue(harness) == 0
    assert harness.attempt(job_id).desired == DesiredState.RUN


def test_a_resume_may_change_the_bound(harness: Harness) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.launched(**bounded())
    supervisor.train(5)
    harness.clock.advance(BOUND)
    stop_overdue(harness)
    supervisor.end("stopped")
    longer = ResourcesSection(max_runtime_seconds=2 * BOUND)
    resume(harness.context, job_id, ResumeRequest(overrides=Overrides(resources=longer)), actor=ADA)
    assert harness.place() == 1
    (again,) = harness.claim_all(job_id)
    again.train(1)
    harness.clock.advance(BOUND)
    assert stop_overdue(harness) == 0
    harness.clock.advance(BOUND)
    assert stop_overdue(harness) == 1


@pytest.mark.parametrize("preemption", [True, False], ids=str)
def test_a_new_job_with_a_bound_starts_on_slots_that_a_larger_one_waits_for(
    harness: Harness, preemption: bool
) -> None:
    settings = harness.context.settings.model_copy(update={"preemption": preemption})
    harness.placer = Placer(replace(harness.context, settings=settings), harness.dispatcher)
    harness.add_node("a")
    harness.running(name="long", resources={"max_runtime_seconds": 3 * BOUND})
    harness.submit(name="large", resources={"world_size": 4})
    assert harness.place() == 0
    harness.clock.advance(1)
    late = harness.submit(name="late", resources={"max_runtime_seconds": 2 * BOUND - 0.5})
    assert harness.place() == 0
    assert "kept for large" in harness.job(late).reason
    other = harness.submit(name="other", resources={"max_runtime_seconds": BOUND, "device": "cpu"})
    assert harness.place() == 1
    with harness.context.database.read() as connection:
        holdings = read_capacity(connection, harness.context.now()).holdings
    (holding,) = (each for each in holdings if each.job_id == other)
    assert holding.overtook_at is None, "it gives way to none: no estimate is involved"
    assert holding.ends_at is not None
    assert (holding.ends_at - harness.context.now()).total_seconds() == BOUND


@pytest.mark.parametrize("given", [0, -1, 1e9, float("inf")], ids=str)
def test_a_bound_is_positive_and_finite(given: float) -> None:
    with pytest.raises(ValueError, match="max_runtime_seconds"):
        ResourcesSection(max_runtime_seconds=given)
