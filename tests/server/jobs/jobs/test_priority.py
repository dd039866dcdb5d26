"""The priority of a job: by number or name, changed while it waits or runs."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from server.core.context import Context
from server.core.errors import ConflictError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import set_priority, stop
from tests.actors import ADA
from tests.server.harness import Harness
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason
from trainyard.spec.sections.resources import ResourcesSection, priority_words


@pytest.mark.parametrize(("given", "stored"), [("low", -50), ("normal", 0), ("high", 50), (7, 7)])
def test_a_priority_is_a_number_or_the_name_of_one(given: object, stored: int) -> None:
    section = ResourcesSection.model_validate({"priority": given})
    assert section.priority == stored
    assert section.model_dump(mode="json")["priority"] == stored
    assert priority_words(stored) == str(given)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("urgent", "'urgent' is no priority: use low, normal, high, or an integer from -100 to"),
        (101, "less than or equal to 100"),
        (True, "valid integer"),
    ],
)
def test_what_is_no_priority_is_refused(given: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        ResourcesSection.model_validate({"priority": given})


def test_the_queue_orders_by_a_changed_priority_at_once(context: Context, harness: Harness) -> None:
    harness.add_node(slots=1)
    harness.running()
    first = harness.submit(name="first")
    harness.clock.advance(1)
    second = harness.submit(name="second")
    assert harness.place() == 0
    reason = harness.job(second).reason
    set_priority(context, second, 10, actor=ADA)
    assert harness.job(second).reason == reason, "it still waits, and shows why"
    harness.add_node("b", slots=1)
    assert harness.place() == 1
    assert harness.job(second).state == JobState.STARTING
    assert harness.job(first).state == JobState.QUEUED
    with context.database.read() as connection:
        event = connection.exec_driver_sql(
            "SELECT actor, message FROM events WHERE kind = 'priority_changed'"
        ).one()
    assert tuple(event) == (ADA.name, "second has priority 10, before normal")


def test_a_job_that_no_longer_stands_behind_a_large_one_starts(
    context: Context, harness: Harness
) -> None:
    """The nodes and the number of waiting jobs stay the same: only the order changes."""
    harness.add_node(slots=2)
    harness.running()
    harness.submit(name="large", resources={"world_size": 2})
    harness.clock.advance(1)
    small = harness.submit(name="small")
    assert harness.place() == 0
    assert harness.place() == 0
    set_priority(context, small, 1, actor=ADA)
    assert harness.place() == 1
    assert harness.job(small).state == JobState.STARTING


def test_a_retry_and_a_resume_keep_a_changed_priority(context: Context, harness: Harness) -> None:
    harness.add_node(slots=2)
    job_id, (supervisor,) = harness.running(resources={"priority": 3})
    set_priority(context, job_id, 20, actor=ADA)
    view = job_view(context, job_id, scope=SYSTEM_SCOPE)
    assert (view.priority, view.effective_spec.resources.priority) == (20, 20)
    supervisor.end("failed", FailureReason.HANG)
    waits = harness.job(job_id)
    assert (waits.state, waits.priority) == (JobState.QUEUED, 20)
    set_priority(context, job_id, -5, actor=ADA)
    assert harness.job(job_id).pending.overrides.resources.priority == -5
    stop(context, job_id, actor=ADA, reason="")
    resume(context, job_id, ResumeRequest(world_size=2), actor=ADA)
    assert harness.job(job_id).priority == -5
    stop(context, job_id, actor=ADA, reason="")
    request = ResumeRequest.model_validate({"overrides": {"resources": {"priority": "high"}}})
    resume(context, job_id, request, actor=ADA)
    assert harness.job(job_id).priority == 50


def test_a_resume_with_other_resources_keeps_a_changed_priority(
    context: Context, harness: Harness
) -> None:
    harness.add_node(slots=2)
    job_id, (supervisor,) = harness.running(resources={"priority": 3})

    def resume_on(**resources: object) -> None:
        request = ResumeRequest.model_validate({"overrides": {"resources": resources}})
        resume(context, job_id, request, actor=ADA)

    set_priority(context, job_id, 20, actor=ADA)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    resume_on(nodes=1)
    assert harness.job(job_id).priority == 20
    assert harness.job(job_id).pending.overrides.resources.nodes == 1
    stop(context, job_id, actor=ADA, reason="")
    resume_on(nodes=1, priority=0)
    assert harness.job(job_id).priority == 0, "named, though it is the default"


def test_a_resize_that_waits_for_its_save_takes_a_later_change(
    context: Context, harness: Harness
) -> None:
    harness.add_node(slots=4)
    job_id, (supervisor,) = harness.running()
    resume(context, job_id, ResumeRequest(world_size=2), actor=ADA)
    set_priority(context, job_id, 30, actor=ADA)
    harness.commit_checkpoint(job_id, 2)
    supervisor.end("stopped")
    waits = harness.job(job_id)
    assert (waits.state, waits.priority, waits.world_size) == (JobState.QUEUED, 30, 2)


def test_a_repeat_changes_nothing_and_an_ended_job_has_no_turn(
    context: Context, harness: Harness
) -> None:
    job_id = harness.submit(name="tiny")
    set_priority(context, job_id, 5, actor=ADA)
    before = harness.dump()
    set_priority(context, job_id, 5, actor=ADA)
    assert harness.dump() == before
    stop(context, job_id, actor=ADA, reason="")
    with pytest.raises(ConflictError, match="tiny is stopped; resume it with another priority"):
        set_priority(context, job_id, 6, actor=ADA)
