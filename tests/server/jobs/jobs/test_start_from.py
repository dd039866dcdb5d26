"""Jobs that start from a checkpoint of another program or server (`checkpoint.start_from`)."""

from __future__ import annotations

from typing import Any

import pytest

from server.core.context import Context
from server.core.errors import InvalidRequestError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.launch import effective_spec
from server.jobs.jobs.fork import fork
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import preview, resume
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.server.harness import Harness, Supervisor
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason
from trainyard.spec.job import parse_job_spec

START = "torchtitan/a1/step-60"
TRAINING = {"steps": 100, "global_batch_size": 16, "micro_batch_size": 4}
SECTIONS = {"training": TRAINING, "checkpoint": {"start_from": START, "interval_steps": 20}}


def request(**fields: Any) -> ResumeRequest:
    return ResumeRequest.model_validate(fields)


def refusal(context: Context, job_id: str, **fields: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequestError) as found:
        preview(context, job_id, request(**fields), scope=SYSTEM_SCOPE)
    return [(each.pointer, each.detail) for each in found.value.problems]


@pytest.fixture
def launched(harness: Harness) -> tuple[str, Supervisor]:
    """A job that starts at step 60, claimed by its node."""
    harness.add_node(slots=8)
    job_id, (supervisor,) = harness.launched(**SECTIONS)
    return job_id, supervisor


def test_its_progress_begins_at_the_step_of_the_checkpoint(
    harness: Harness, context: Context
) -> None:
    job_id = harness.submit(**SECTIONS)
    progress = job_view(context, job_id, scope=SYSTEM_SCOPE).progress
    assert (progress.step, progress.steps) == (60, 100)
    harness.add_node()
    harness.place()
    attempt = harness.attempt(job_id)
    assert (attempt.start_step, attempt.last_step, attempt.parent_checkpoint_id) == (60, 60, None)


def test_a_retry_before_the_first_save_begins_there_again(
    harness: Harness, launched: tuple[str, Supervisor]
) -> None:
    job_id, supervisor = launched
    supervisor.train(75)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.pass_time(600)
    assert harness.place() == 1
    again = harness.attempt(job_id)
    assert (again.number, again.start_step, harness.job(job_id).progress.step) == (2, 60, 60)
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train(80)
    harness.commit_checkpoint(job_id, 80)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.pass_time(600)
    assert harness.place() == 1
    assert harness.attempt(job_id).start_step == 80, "its own checkpoint is newer"


def test_a_resume_before_the_first_save_keeps_the_start(
    context: Context, harness: Harness, launched: tuple[str, Supervisor]
) -> None:
    job_id, supervisor = launched
    supervisor.train(70)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    shown = preview(context, job_id, request(), scope=SYSTEM_SCOPE)
    assert (shown.checkpoint_id, shown.step) == (None, 60)
    (problem,) = refusal(context, job_id, steps=60)
    assert problem[0] in {"/steps", "/overrides/steps"}
    other = {"start_from": "torchtitan/a1/step-80"}
    (problem,) = refusal(context, job_id, overrides={"checkpoint": other})
    assert problem[0] == "/overrides/checkpoint/start_from"
    assert f"legal: {START!r}" in problem[1]
    resume(context, job_id, request(overrides={"checkpoint": {"interval_steps": 5}}), actor=ADA)
    assert harness.place() == 1
    attempt = harness.attempt(job_id)
    assert attempt.start_step == 60
    with context.database.read() as connection:
        section = effective_spec(connection, attempt.id).checkpoint
    assert (section.interval_steps, section.start_from) == (5, START)


def test_a_job_without_a_step_left_is_refused(harness: Harness) -> None:
    sections = SECTIONS | {"training": TRAINING | {"steps": 60}}
    with pytest.raises(InvalidRequestError, match="starts at step 60") as found:
        harness.submit(**sections)
    assert [each.pointer for each in found.value.problems] == ["/training/steps"]


def test_a_checkpoint_of_this_server_is_forked_instead(
    context: Context, harness: Harness, launched: tuple[str, Supervisor]
) -> None:
    job_id, supervisor = launched
    supervisor.train(80)
    listed = harness.commit_checkpoint(job_id, 80)
    start = {"start_from": f"{job_id}/a1/step-80"}
    sections = {"name": "again", "training": TRAINING, "checkpoint": start}
    with pytest.raises(InvalidRequestError, match=f"Fork {listed} instead") as found:
        harness.submit(**sections)
    assert [each.pointer for each in found.value.problems] == ["/checkpoint/start_from"]
    with pytest.raises(InvalidRequestError, match="Fork"):
        plan_job(context, parse_job_spec(sections), actor=ADA)
    unknown = {"start_from": f"{job_id}/a1/step-81"}
    assert harness.submit(**sections | {"checkpoint": unknown}), "copied from another server"


def test_a_fork_starts_from_its_checkpoint_alone(
    context: Context, harness: Harness, launched: tuple[str, Supervisor]
) -> None:
    job_id, supervisor = launched
    supervisor.train(80)
    listed = harness.commit_checkpoint(job_id, 80)
    only_weights = ForkRequest.model_validate(
        {"parts": ["model"], "changes": {"training": {"steps": 50}}}
    )
    _, forked = fork(context, listed, only_weights, actor=ADA)
    job = harness.job(forked)
    assert (job.spec.checkpoint.start_from, job.progress.step) == (None, 0)
    assert job.state == JobState.QUEUED
    named = ForkRequest.model_validate({"changes": {"checkpoint": {"start_from": START}}})
    with pytest.raises(InvalidRequestError, match="a fork starts from its checkpoint") as found:
        fork(context, listed, named, actor=ADA)
    assert found.value.problems[0].pointer == "/changes/checkpoint/start_from"
