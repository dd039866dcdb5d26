"""Limits of users: sizes of elastic jobs, growth, lost nodes and spare nodes respect them."""

from __future__ import annotations

import pytest

from server.cluster.projects.service import change_project
from server.core.context import Context
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.members import OURS, add_projects
from tests.server.scheduler.elastic.scenario import (
    SIX,
    end_all,
    grown,
    lose,
    run_round,
    shrunk,
    three_nodes,
)
from tests.server.scheduler.elastic.spare_nodes import ranks_and_spares, with_spare
from tests.server.user_limits import act_as, limit, limit_own, submit_ours
from trainyard.protocol.rest.projects import ProjectSettings
from trainyard.protocol.states import DesiredState, JobState
from trainyard.run.failures import FailureReason


@pytest.fixture(autouse=True)
def _projects(context: Context) -> None:
    add_projects(context)


def test_an_elastic_job_starts_at_a_size_within_the_limit(
    harness: Harness, context: Context
) -> None:
    limit(context, max_slots=4)
    three_nodes(harness)
    act_as(harness, "ada")
    job_id = harness.submit(project=OURS, **SIX)
    run_round(harness)
    assert (harness.job(job_id).state, harness.job(job_id).world_size) == (JobState.STARTING, 4)


def test_a_job_grows_no_further_than_the_limit(harness: Harness, context: Context) -> None:
    limit(context, max_slots=4)
    act_as(harness, "ada")
    shrunk(harness, project=OURS)
    harness.add_node("c", slots=2)
    assert grown(harness) == 0
    limit_own(context, "ada", max_slots=6)
    assert grown(harness) == 1


def test_a_job_grows_onto_slots_that_a_limit_keeps_from_others(
    harness: Harness, context: Context
) -> None:
    """The waiting job closes neither the nodes nor the project's quota to the jobs of others."""
    change_project(context, OURS, ProjectSettings(max_slots=10), actor=ADA)
    act_as(harness, "ada")
    shrunk(harness, project=OURS)
    harness.add_node("c", slots=6)
    limit(context, max_running=1)
    act_as(harness, "bob")
    harness.launched(project=OURS, resources={"world_size": 2})
    waiting = submit_ours(harness, 2)
    harness.place()
    assert harness.job(waiting).reason == "its owner runs 1 of 1 jobs in project ours"
    assert grown(harness) == 1


def test_a_job_whose_owner_exceeds_a_limit_waits_for_its_node(
    harness: Harness, context: Context
) -> None:
    three_nodes(harness)
    act_as(harness, "ada")
    job_id, (*living, silent) = harness.running(project=OURS, **SIX)
    limit(context, max_slots=5)
    for _ in range(2):
        lose(harness, living)
    assert harness.attempt(job_id).failure is None
    assert silent.train(12) == DesiredState.RUN
    limit_own(context, "ada", max_slots=100)
    lose(harness, living)
    assert harness.attempt(job_id).failure.reason == FailureReason.NODE_LOST


def test_a_lost_node_is_not_replaced_above_the_limit(harness: Harness, context: Context) -> None:
    act_as(harness, "ada")
    job_id, (first, _) = with_spare(harness, project=OURS)
    lose(harness, [first])
    end_all([first])
    limit(context, max_slots=5)  # the job keeps 6
    assert harness.keep_spares() == 0
    assert ranks_and_spares(harness, job_id)[1] == [], "it queues like other jobs"
    assert harness.job(job_id).state == JobState.QUEUED


def test_no_spare_node_is_reserved_above_the_limit(harness: Harness, context: Context) -> None:
    act_as(harness, "ada")
    job_id, (first, _) = with_spare(harness, project=OURS)
    lose(harness, [first])
    end_all([first])
    assert harness.keep_spares() == 1
    for supervisor in harness.claim_all(job_id):
        supervisor.train(11)
    harness.add_node("d", slots=2)
    limit(context, max_slots=5)
    harness.clock.advance(10)
    harness.keep_spares()
    assert ranks_and_spares(harness, job_id) == (["a", "c"], [])
    limit(context, max_slots=6)
    harness.clock.advance(10)
    harness.keep_spares()
    assert ranks_and_spares(harness, job_id) == (["a", "c"], ["d"])
