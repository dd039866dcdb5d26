"""Quotas: which jobs wait, which attempts leave, and which continue."""

from __future__ import annotations

import pytest

from server.cluster.projects.service import change_project, create_project
from server.core.context import Context
from server.scheduler.rounds.drain import order_isolation, run_slot_hours
from tests.actors import ADA
from tests.server.harness import Harness
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings
from trainyard.protocol.states import DesiredState, JobState
from trainyard.run.failures import FailureReason


@pytest.fixture
def vision(context: Context) -> str:
    """A project of at most 4 slots and 10 slot-hours a month."""
    settings = ProjectRequest(name="vision", max_slots=4, slot_hours_per_month=10.0)
    return create_project(context, settings, actor=ADA).name


def stop_over_quota(context: Context) -> int:
    """Run one round of the quotas; return the number of attempts that it orders to leave."""
    return run_slot_hours(context, order_isolation(context))


def test_a_project_holds_no_more_than_its_quota_and_keeps_nothing_from_others(
    harness: Harness, context: Context, vision: str
) -> None:
    harness.add_node(slots=8)
    harness.running(project=vision, resources={"world_size": 3})
    waiting = harness.submit(project=vision, resources={"world_size": 2})
    harness.clock.advance(1)
    behind = harness.submit(name="behind", project=vision)
    other = harness.submit(name="other", resources={"world_size": 4})
    assert harness.place() == 1
    assert harness.job(other).state == JobState.STARTING
    assert harness.job(waiting).reason == "project vision holds 3 of its 4 slots; needs 2"
    assert harness.job(behind).reason == "project vision holds 3 of its 4 slots; waits behind tiny"
    assert harness.place() == 0
    change_project(context, vision, ProjectSettings(max_slots=None), actor=ADA)
    harness.add_node("b", slots=3)
    assert harness.place() == 2


def test_a_lower_quota_ends_nothing(harness: Harness, context: Context, vision: str) -> None:
    harness.add_node(slots=8)
    job_id, (supervisor,) = harness.running(project=vision, resources={"world_size": 4})
    change_project(context, vision, ProjectSettings(max_slots=2), actor=ADA)
    assert stop_over_quota(context) == 0
    assert supervisor.train(2) == DesiredState.RUN
    assert harness.job(job_id).state == JobState.RUNNING
    waiting = harness.submit(project=vision)
    assert harness.place() == 0
    assert harness.job(waiting).reason == "project vision holds 4 of its 2 slots; needs 1"


def test_jobs_save_and_leave_when_the_hours_are_used_and_go_on_in_the_next_month(
    harness: Harness, context: Context, vision: str
) -> None:
    harness.add_node(slots=8)
    job_id, (supervisor,) = harness.running(project=vision, resources={"world_size": 4})
    _, (other,) = harness.running()
    harness.clock.advance(2 * 3600)
    assert stop_over_quota(context) == 0
    harness.clock.advance(1800)
    assert stop_over_quota(context) == 1
    assert stop_over_quota(context) == 0, "an order is a level: it is given once"
    assert supervisor.train(7) == DesiredState.STOP
    assert other.train(7) == DesiredState.RUN
    harness.commit_checkpoint(job_id, 8)
    supervisor.end("stopped")
    attempt, job = harness.attempt(job_id), harness.job(job_id)
    used = "project vision has used its 10 slot-hours of January"
    assert (attempt.failure.reason, attempt.failure.message) == (FailureReason.PREEMPTED, used)
    assert (job.state, job.retries_used) == (JobState.QUEUED, 0)
    assert harness.place() == 0
    assert harness.job(job_id).reason == used
    harness.clock.advance(31 * 86_400)  # in February
    assert harness.place() == 1
    assert stop_over_quota(context) == 0


def test_jobs_go_on_when_the_quota_is_raised(
    harness: Harness, context: Context, vision: str
) -> None:
    harness.add_node(slots=8)
    job_id, (supervisor,) = harness.running(project=vision, resources={"world_size": 4})
    harness.clock.advance(3 * 3600)
    assert stop_over_quota(context) == 1
    supervisor.end("stopped")
    assert harness.place() == 0
    change_project(context, vision, ProjectSettings(slot_hours_per_month=20.0), actor=ADA)
    assert harness.place() == 1
    assert harness.job(job_id).state == JobState.STARTING
