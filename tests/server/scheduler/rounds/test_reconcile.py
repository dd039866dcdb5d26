"""Silence and lost messages, on a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select, text

from server.app.periodic_work import periodic_work
from server.core.context import Context
from server.core.database.tables import attempt_nodes, attempts, jobs
from server.core.liveness import beat
from server.core.settings import Settings
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.jobs.service import stop
from server.scheduler.rounds.leader import Leader
from server.scheduler.rounds.loop import Scheduler
from server.scheduler.rounds.reconcile import Reconciler
from tests.actors import ADA
from tests.server.harness import WORKER, Harness, Supervisor
from trainyard.protocol.states import AttemptNodeState, DesiredState, JobState
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat
from trainyard.run.failures import FailureReason
from trainyard.spec.sections.retry import RetrySection

TWO_NODES: dict[str, Any] = {"resources": {"world_size": 4, "nodes": 2}}
LEASE = 30.0
SHORTEST_LEASE = 12.0
SUPERVISOR_PAUSE = 6.0
"""Time until a supervisor reports after an outage: its longest pause plus a second."""


def unreachable(harness: Harness, job_id: str) -> list[bool]:
    return [share.unreachable_since is not None for share in harness.shares(job_id)]


@pytest.fixture
def up(context: Context) -> None:
    """Servers are up, and have been for long."""
    beat(context)


@pytest.mark.usefixtures("up")
def test_silence_is_a_condition_and_no_end(harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    harness.reconcile(seconds=LEASE)
    assert unreachable(harness, job_id) == [False]
    harness.reconcile(seconds=1)
    harness.reconcile(seconds=1)
    assert unreachable(harness, job_id) == [True]
    assert harness.kinds(job_id).count("unreachable") == 1
    assert harness.job(job_id).state == JobState.RUNNING
    assert harness.place() == 0
    supervisor.train(5)
    assert unreachable(harness, job_id) == [False]
    assert harness.kinds(job_id)[-1] == "reachable"


@pytest.mark.usefixtures("up")
def test_a_claim_without_any_report_has_a_lease_too(harness: Harness) -> None:
    harness.add_node()
    job_id, _ = harness.launched()
    harness.reconcile(seconds=LEASE + 1)
    assert unreachable(harness, job_id) == [True]


@pytest.mark.usefixtures("up")
def test_an_outage_of_the_servers_counts_against_no_node(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(retry={"node_lost_after_seconds": 60})
    waiting = harness.submit(resources={"world_size": 4})  # keeps one slot: it must not be placed
    harness.clock.advance(600)
    harness.reconciler.run()  # the scheduler is up, no API server is
    assert unreachable(harness, job_id) == [False]
    beat(context)
    harness.reconciler.run()
    harness.reconcile(seconds=LEASE - 1)  # after the outage every share has a full period again
    assert unreachable(harness, job_id) == [False]
    assert harness.job(job_id).state == JobState.RUNNING
    assert supervisor.train(7) == DesiredState.RUN
    assert harness.kinds(job_id) == ["submitted", "placed", "claimed", "running"]
    assert harness.job(waiting).state == JobState.QUEUED


@pytest.mark.parametrize("outage", [4.5, 5.5, 11.5, 30])
@pytest.mark.usefixtures("up")
def test_the_shortest_lease_outlasts_an_outage_of_any_length(
    harness: Harness, context: Context, outage: float
) -> None:
    with pytest.raises(ValidationError, match="lease_seconds"):
        Settings(lease_seconds=SHORTEST_LEASE - 0.1)
    settings = context.settings.model_copy(update={"lease_seconds": SHORTEST_LEASE})
    judge = Reconciler(replace(context, settings=settings), harness.dispatcher)
    harness.add_node()
    job_id, _ = harness.running()
    for _ in range(int(2 * outage)):
        harness.clock.advance(0.5)
        judge.run()
    for since, gone in ((SUPERVISOR_PAUSE, False), (SHORTEST_LEASE + 1, True)):
        for _ in range(int(since)):  # the servers are back
            beat(context)
            judge.run()
            harness.clock.advance(1)
        beat(context)
        judge.run()
        assert unreachable(harness, job_id) == [gone]


@pytest.mark.usefixtures("up")
def test_a_clock_that_is_set_back_keeps_no_dead_node_alive(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a", slots=1)
    harness.add_node("b", slots=1)
    dead, _ = harness.running()
    live, (supervisor,) = harness.running()
    harness.reconcile(seconds=5)
    harness.clock.advance(-3600)
    for _ in range(int(LEASE) + 2):
        harness.reconcile(seconds=1)
        supervisor.train(2)
    assert unreachable(harness, dead) == [True]
    assert unreachable(harness, live) == [False]
    harness.clock.advance(-3600)
    harness.reconciler.run()  # no API server has beaten since: nothing is judged
    supervisor.train(3)
    assert unreachable(harness, live) == [False]
    harness.add_node("c")
    harness.clock.advance(3600)
    harness.reconciler.run()
    for _ in range(int(LEASE)):
        harness.reconcile(seconds=1)
        supervisor.train(3)
    assert unreachable(harness, live) == [False]


@pytest.mark.usefixtures("up")
def test_a_silence_that_lasts_is_a_lost_node(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id, (first, second) = harness.running(
        **TWO_NODES, retry={"node_lost_after_seconds": 60, "backoff_seconds": 0, "max_retries": 0}
    )
    for seconds in (10, 10, 10, 10, 10, 9):
        harness.reconcile(seconds=seconds)
        order = first.train(2)
    assert order == DesiredState.RUN, "a lost node is known by the end of its time only"
    harness.reconcile(seconds=1)
    assert harness.shares(job_id)[1].failure.reason == FailureReason.NODE_LOST
    assert first.train(2) == DesiredState.CANCEL
    first.end("failed", FailureReason.TRAINER_ERROR)
    assert harness.attempt(job_id).failure.reason == FailureReason.NODE_LOST
    assert harness.job(job_id).state == JobState.QUEUED, "and costs no retry"
    assert second.train(3) == DesiredState.CANCEL, "the lost one comes back, and is sent away"


@pytest.mark.usefixtures("up")
def test_an_unreadable_spec_keeps_no_lease_of_another_job(
    harness: Harness, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    for node in ("a", "b"):
        harness.add_node(node, slots=2)
    lost: dict[str, Any] = {
        "retry": {"node_lost_after_seconds": 60},
        "resources": {"world_size": 2},
    }
    broken, _ = harness.running(**lost)
    whole, _ = harness.running(**lost)
    harness.spoil_spec(broken)
    for _ in range(7):
        harness.reconcile(seconds=10)
    (share,) = harness.shares(whole)
    assert share.failure is not None
    assert share.failure.reason == FailureReason.NODE_LOST
    assert unreachable(harness, broken) == [True]
    assert caplog.text.count(f"the stored spec of job {broken} cannot be read") == 1


@pytest.mark.usefixtures("up")
def test_settings_that_cannot_be_read_keep_no_lease_of_another_job(
    harness: Harness, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    for node in ("a", "b"):
        harness.add_node(node, slots=2)
    resources = {"world_size": 2, "min_world_size": 1, "max_world_size": 2}
    broken, _ = harness.running(retry={"node_lost_after_seconds": 600}, resources=resources)
    whole, _ = harness.running(retry={"node_lost_after_seconds": 60}, resources={"world_size": 2})
    with context.database.write() as connection:
        unreadable = {"chosen": '{"of_a_later_version": 1}', "id": broken}
        connection.execute(text("UPDATE jobs SET chosen = :chosen WHERE id = :id"), unreadable)
    for _ in range(7):
        harness.reconcile(seconds=10)
    (share,) = harness.shares(whole)
    assert share.failure is not None
    assert share.failure.reason == FailureReason.NODE_LOST
    assert unreachable(harness, broken) == [True]
    assert 1 <= caplog.text.count("is left out for") <= 3, "it is not tried in each round"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE jobs SET spec = :value",
        "UPDATE jobs SET pending = :value",
        "UPDATE attempts SET overrides = :value",
    ],
)
@pytest.mark.usefixtures("up")
def test_a_lost_node_ends_an_attempt_that_cannot_be_read(
    harness: Harness, context: Context, statement: str
) -> None:
    for node in ("a", "b"):
        harness.add_node(node, slots=2)
    job_id, _ = harness.running(**TWO_NODES)
    with context.database.write() as connection:
        connection.execute(text(statement), {"value": '{"of_a_later_version": 1}'})
    for _ in range(int(RetrySection().node_lost_after_seconds) + 1):
        harness.clock.advance(1)
        beat(context)
    harness.reconciler.run()
    assert ended(context, job_id) == ("failed", "ended", {"ended"})
    assert harness.place() == 0


def ended(context: Context, job_id: str) -> tuple[str, str, set[str]]:
    """Return the states of a job, its attempt and the attempt's shares, without its launch."""
    with context.database.read() as connection:
        return (
            connection.scalars(select(jobs.c.state).where(jobs.c.id == job_id)).one(),
            connection.scalars(select(attempts.c.state)).one(),
            set(connection.scalars(select(attempt_nodes.c.state))),
        )


@pytest.mark.usefixtures("up")
def test_a_peer_that_failed_first_does_not_hide_a_lost_node(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id, (first, _) = harness.running(**TWO_NODES, retry={"node_lost_after_seconds": 60})
    first.end("failed", FailureReason.TRAINER_ERROR)
    assert harness.attempt(job_id).failure.reason == FailureReason.TRAINER_ERROR
    harness.reconcile(seconds=61)
    assert harness.attempt(job_id).failure.reason == FailureReason.NODE_LOST


@pytest.mark.usefixtures("up")
def test_one_unclaimed_share_ends_the_others(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id = harness.submit(**TWO_NODES, retry={"max_retries": 0})
    harness.place()
    first = Supervisor(harness, harness.attempt(job_id).id, node="a")
    for _ in range(5):
        harness.reconcile(seconds=24)
        first.report()
    assert first.report() == DesiredState.CANCEL
    first.end("cancelled")
    assert harness.job(job_id).state == JobState.FAILED


@pytest.mark.usefixtures("up")
def test_time_without_servers_is_no_time_to_claim(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id = harness.submit()
    harness.place()
    harness.clock.advance(600)
    beat(context)
    harness.reconciler.run()
    assert harness.job(job_id).state == JobState.STARTING
    assert len(harness.claim_all(job_id)) == 1


@pytest.mark.usefixtures("up")
def test_a_broker_that_is_away_delays_and_loses_nothing(harness: Harness) -> None:
    harness.add_node()
    harness.dispatcher.up_since = None
    job_id = harness.submit(retry={"max_retries": 0})
    assert harness.place() == 1
    harness.reconcile(seconds=200)  # longer than a claim may take
    assert harness.dispatcher.sent == []
    assert harness.job(job_id).state == JobState.STARTING
    harness.dispatcher.up_since = harness.clock.now()
    harness.reconcile(seconds=5)
    assert len(harness.dispatcher.sent) == 1
    harness.reconcile(seconds=114)
    assert harness.job(job_id).state == JobState.STARTING, "it could be claimed for 119 s"
    harness.reconcile(seconds=1)
    assert harness.attempt(job_id).failure.reason == FailureReason.LAUNCH_ERROR


@pytest.mark.usefixtures("up")
def test_nodes_go_offline_and_come_back(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id = harness.submit()
    harness.reconcile(seconds=31)
    assert harness.place() == 0
    assert harness.job(job_id).reason == "no node is online that takes new work"
    node_heartbeat(context, NodeHeartbeat(protocol=PROTOCOL, node="node-1", worker=WORKER))
    assert harness.place() == 1


@pytest.mark.usefixtures("up")
def test_nodes_are_not_offline_because_servers_were(harness: Harness, context: Context) -> None:
    harness.add_node()
    harness.submit()
    harness.clock.advance(600)
    beat(context)
    harness.reconciler.run()
    assert harness.place() == 1


@pytest.mark.usefixtures("up")
def test_a_stopped_job_whose_node_died_ends(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, _ = harness.running(retry={"node_lost_after_seconds": 60})
    stop(context, job_id, actor=ADA, reason="")
    harness.reconcile(seconds=61)
    assert harness.shares(job_id)[0].state == AttemptNodeState.ENDED
    assert harness.job(job_id).state == JobState.FAILED


def test_only_the_leader_works(harness: Harness, context: Context) -> None:
    beat(context)
    harness.add_node()
    job_id = harness.submit()
    first, second = Leader(context.database), Leader(context.database)
    assert Scheduler(context, harness.dispatcher, leader=first, work_of=periodic_work).tick()
    standing_by = Scheduler(context, harness.dispatcher, leader=second, work_of=periodic_work)
    assert not standing_by.tick()
    assert harness.job(job_id).state == JobState.STARTING
    first.release()
    assert standing_by.tick()
    second.release()
