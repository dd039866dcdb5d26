"""Elastic jobs on a clock that the test moves: the loss of nodes, and their return."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from server.api.auth.tokens import hash_token
from server.cluster.projects.service import change_project
from server.core.database.tables import nodes
from server.core.errors import ConflictError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.attempts.reports import authenticate_share
from server.jobs.jobs.service import cancel, delete, stop
from server.telemetry.goodput.queries import goodput_view
from tests.actors import ADA
from tests.server.harness import WORKER, Harness
from tests.server.scheduler.elastic.scenario import (
    LEASE,
    SIX,
    end_all,
    free_on,
    grown,
    lose,
    pass_time,
    run_round,
    set_pace,
    share_of,
    three_nodes,
    took_over,
)
from tests.server.scheduler.elastic.spare_nodes import FOUR
from trainyard.protocol.goodput import TimeCategory
from trainyard.protocol.rest.projects import ProjectSettings
from trainyard.protocol.states import (
    AttemptCause,
    AttemptNodeState,
    AttemptOutcome,
    AttemptState,
    DesiredState,
    JobState,
)
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat, WorkerIdentity
from trainyard.run.failures import FailureReason


def test_a_job_goes_on_without_a_silent_node_and_holds_its_slots(harness: Harness) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    first = harness.attempt(job_id)
    lose(harness, supervisors[:2])
    assert harness.kinds(job_id)[-1] == "cancel_requested"
    end_all(supervisors[:2])
    old = share_of(harness, first.id, "c")
    assert (old.state, old.outcome) == (AttemptNodeState.RUNNING, AttemptOutcome.FAILED)
    job = harness.job(job_id)
    assert (job.state, job.retries_used, job.not_before) == (JobState.QUEUED, 0, None)
    took_over(harness, job_id)
    attempt, job = harness.attempt(job_id), harness.job(job_id)
    assert (attempt.layout.world_size, attempt.cause) == (4, AttemptCause.RETRY)
    assert job.size_change.reason == "c has been silent for 31 s"
    assert {s.node for s in harness.shares(job_id)} == {"a", "b"}
    assert free_on(harness, "c") == 0


def test_the_lost_node_comes_back_and_the_job_grows_again(harness: Harness) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    silent = supervisors[2]
    lose(harness, supervisors[:2])
    end_all(supervisors[:2])
    living = took_over(harness, job_id)
    assert silent.train(12) == DesiredState.CANCEL
    assert free_on(harness, "c") == 0  # it reports, and its ranks may still run
    assert harness.job(job_id).progress.step == 11
    silent.end("cancelled")
    assert free_on(harness, "c") == 2
    assert harness.job(job_id).state == JobState.RUNNING
    set_pace(harness, job_id, 10**6)
    assert grown(harness) == 1
    for supervisor in living:
        supervisor.end("stopped")
    run_round(harness)
    assert harness.attempt(job_id).layout.world_size == 6


@pytest.mark.parametrize("boot", [WORKER.boot_id, "b007-0001"])
def test_a_worker_that_finds_no_process_frees_the_slots(harness: Harness, boot: str) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    first = harness.attempt(job_id)
    lose(harness, supervisors[:2])
    end_all(supervisors[:2])
    took_over(harness, job_id)
    worker = WorkerIdentity(folder=WORKER.folder, boot_id=boot)
    with harness.context.database.write() as connection:
        connection.execute(update(nodes).where(nodes.c.name == "c").values(worker=worker))
    beats = NodeHeartbeat(protocol=PROTOCOL, node="c", worker=worker, gone=(first.id,))
    assert node_heartbeat(harness.context, beats).expected == ()
    assert free_on(harness, "c") == 2
    assert share_of(harness, first.id, "c").failure.reason == FailureReason.NODE_LOST
    assert harness.attempt(job_id).state == AttemptState.RUNNING


def test_without_proof_the_slots_come_free_as_those_of_any_job(harness: Harness) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX, retry={"node_lost_after_seconds": 120})
    lose(harness, supervisors[:2])
    end_all(supervisors[:2])
    living = took_over(harness, job_id)
    for _ in range(9):
        assert free_on(harness, "c") == 0
        pass_time(harness, 10, silent=["c"])
        for supervisor in living:
            supervisor.train(12)
        harness.reconciler.run()
    assert free_on(harness, "c") == 2
    assert harness.attempt(job_id).number == 2


def test_the_token_of_a_lost_share_is_valid_until_the_share_ends(harness: Harness) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    silent = supervisors[2]
    lose(harness, supervisors[:2])
    end_all(supervisors[:2])
    token = hash_token(silent.reply.attempt_token)
    harness.clock.advance(3600)
    authenticate_share(harness.context, silent.attempt_id, token)
    silent.end("cancelled")
    with pytest.raises(ConflictError, match="token is revoked"):
        authenticate_share(harness.context, silent.attempt_id, token)
    assert harness.job(job_id).state == JobState.QUEUED


@pytest.mark.parametrize("least", [None, 5])
def test_a_job_that_cannot_continue_waits_for_its_node(harness: Harness, least: int | None) -> None:
    three_nodes(harness)
    resources = {"world_size": 6} | ({} if least is None else {"min_world_size": least})
    job_id, supervisors = harness.running(**SIX | {"resources": resources})
    for _ in range(2):
        lose(harness, supervisors[:2])
    assert harness.job(job_id).state == JobState.RUNNING
    assert harness.attempt(job_id).failure is None
    assert supervisors[2].train(12) == DesiredState.RUN


@pytest.mark.parametrize(
    "quota", [{"max_slots": 5}, {"slot_hours_per_month": 0.01}], ids=["slots", "hours"]
)
@pytest.mark.parametrize("resources", [SIX["resources"], FOUR["resources"]], ids=["range", "spare"])
def test_a_job_whose_project_exceeds_a_quota_waits_for_its_node(
    harness: Harness, quota: dict[str, Any], resources: dict[str, Any]
) -> None:
    three_nodes(harness)
    job_id, (*living, silent) = harness.running(**SIX | {"resources": resources})
    change_project(harness.context, "default", ProjectSettings(**quota), actor=ADA)
    for _ in range(2):
        lose(harness, living)
    assert harness.attempt(job_id).failure is None
    assert silent.train(12) == DesiredState.RUN
    raised: dict[str, Any] = dict.fromkeys(quota, 100)
    change_project(harness.context, "default", ProjectSettings(**raised), actor=ADA)
    lose(harness, living)
    assert harness.attempt(job_id).failure.reason == FailureReason.NODE_LOST


def test_the_job_waits_as_long_as_its_spec_names(harness: Harness) -> None:
    three_nodes(harness)
    resources = SIX["resources"] | {"shrink_after_seconds": 90.0}
    job_id, supervisors = harness.running(**SIX | {"resources": resources})
    lose(harness, supervisors[:2], seconds=89)
    assert harness.attempt(job_id).failure is None
    lose(harness, supervisors[:2], seconds=1)
    assert harness.attempt(job_id).failure.reason == FailureReason.NODE_LOST


def test_a_free_node_takes_the_place_of_the_lost_one(harness: Harness) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    lost = harness.shares(job_id)[2].node
    harness.add_node("d", slots=2)
    lose(harness, supervisors[:2])
    end_all(supervisors[:2])
    took_over(harness, job_id)
    assert harness.attempt(job_id).layout.world_size == 6
    assert {s.node for s in harness.shares(job_id)} == {"a", "b", "c", "d"} - {lost}
    assert harness.job(job_id).size_change is None


def test_a_person_stops_a_job_whose_node_is_silent(harness: Harness) -> None:
    """Nothing follows a stop, so the attempt waits for the silent node, like that of any job."""
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    stop(harness.context, job_id, actor=ADA, reason="")
    pass_time(harness, LEASE + 1, silent=["c"])
    for supervisor in supervisors[:2]:
        supervisor.end("stopped")
    harness.reconciler.run()
    harness.reconciler.run()
    assert harness.attempt(job_id).failure is None
    assert harness.job(job_id).state == JobState.STOPPING


def test_a_person_ends_and_deletes_a_job_with_a_lost_node(harness: Harness) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    lose(harness, supervisors[:2])
    end_all(supervisors[:2])
    cancel(harness.context, job_id, actor=ADA, reason="")
    assert harness.job(job_id).state == JobState.CANCELLED
    with pytest.raises(ConflictError, match="c may still run ranks of tiny: its rows hold"):
        delete(harness.context, job_id, actor=ADA, checkpoints="keep")
    supervisors[2].end("cancelled")
    delete(harness.context, job_id, actor=ADA, checkpoints="keep")


def test_a_lost_first_node_is_searched_for_commits(harness: Harness) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    lose(harness, supervisors[1:])
    end_all(supervisors[1:])
    assert harness.kinds(job_id)[-2:] == ["operation_queued", "queued"]


def test_late_events_of_a_lost_share_are_no_part_of_the_next_attempt(harness: Harness) -> None:
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    lose(harness, supervisors[:2])
    end_all(supervisors[:2])
    took_over(harness, job_id)
    harness.clock.advance(100)
    supervisors[2].train(12)  # reachable
    view = goodput_view(harness.context, job_id, scope=SYSTEM_SCOPE)
    spent = {each.category: each.milliseconds for each in view.categories}
    assert sum(spent.values()) == view.wall_milliseconds
    assert spent[TimeCategory.UNREACHABLE] <= (LEASE + 1) * 1000
