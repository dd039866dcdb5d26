"""Drained nodes: their jobs save, leave and continue elsewhere, or finish."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from server.cluster.nodes.changes import set_drain
from server.cluster.nodes.queries import list_nodes
from server.core.context import Context
from server.core.database.tables import events
from server.core.liveness import beat
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.jobs.service import cancel, stop
from tests.actors import ADA
from tests.server.harness import WORKER, Harness
from tests.server.scheduler.elastic.scenario import LEASE, pass_time, share_of
from tests.server.scheduler.rounds.leaving import leaves
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.states import AttemptState, DesiredState, JobState
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat
from trainyard.run.failures import FailureReason

TWO_NODES: dict[str, Any] = {"resources": {"world_size": 4, "nodes": 2}}


def test_what_runs_on_a_drained_node_saves_and_goes_on_elsewhere(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.running(retry={"max_retries": 0, "backoff_seconds": 5})
    harness.add_node("b")
    set_drain(context, "a", "move", actor=ADA)
    assert harness.empty() == 1
    assert harness.empty() == 0, "an order is a level: it is given once"
    saved = leaves(harness, job_id, supervisor, reason="a was drained by ada")
    assert harness.place() == 1
    (second,) = harness.claim_all(job_id)
    assert second.node == "b"
    assert second.reply.attempt.resume is not None
    assert second.reply.attempt.resume.checkpoint_id == saved
    assert second.train(9) == DesiredState.RUN


def test_every_node_of_an_attempt_is_stopped_when_one_is_drained(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id, (first, second) = harness.running(**TWO_NODES)
    set_drain(context, "b", "move", actor=ADA)
    harness.empty()
    assert {first.train(2), second.train(2)} == {DesiredState.STOP}
    first.end("stopped")
    assert harness.job(job_id).state == JobState.STOPPING
    second.end("stopped")
    assert harness.attempt(job_id).failure.reason == FailureReason.PREEMPTED
    assert harness.place() == 0
    assert harness.job(job_id).reason == "needs 4 slots on 2 nodes, 2 are online"
    set_drain(context, "b", None, actor=ADA)
    assert harness.place() == 1


def test_what_runs_may_finish(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.running()
    set_drain(context, "a", "finish", actor=ADA)
    assert harness.empty() == 0
    assert supervisor.train(2) == DesiredState.RUN
    set_drain(context, "a", "move", actor=ADA)  # the drain becomes urgent after all
    assert harness.empty() == 1
    assert supervisor.train(3) == DesiredState.STOP
    supervisor.end("succeeded")
    assert harness.job(job_id).state == JobState.SUCCEEDED, "what happened counts"


def test_an_unclaimed_attempt_is_placed_again(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    job_id = harness.submit()
    harness.place()
    set_drain(context, "a", "move", actor=ADA)
    harness.empty()
    assert harness.attempt(job_id).state == AttemptState.ENDED
    assert harness.job(job_id).state == JobState.QUEUED
    harness.add_node("b")
    assert harness.place() == 1


def test_a_failure_while_it_saves_is_that_failure(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.running(retry={"max_retries": 0})
    set_drain(context, "a", "move", actor=ADA)
    harness.empty()
    supervisor.end("failed", FailureReason.CHECKPOINT_ERROR)
    assert harness.attempt(job_id).failure.reason == FailureReason.CHECKPOINT_ERROR
    assert harness.job(job_id).state == JobState.FAILED


def test_a_person_may_still_end_a_job_that_is_leaving(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    for verb, order, state in (
        (stop, DesiredState.STOP, "stopped"),
        (cancel, DesiredState.CANCEL, "cancelled"),
    ):
        set_drain(context, "a", None, actor=ADA)
        job_id, (supervisor,) = harness.running()
        set_drain(context, "a", "move", actor=ADA)
        harness.empty()
        verb(context, job_id, actor=ADA, reason="")
        assert supervisor.train(2) == order
        supervisor.end(state)
        assert harness.job(job_id).state == state


def test_a_job_without_retries_after_a_preemption_keeps_its_save(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.running(retry={"on": []})
    set_drain(context, "a", "move", actor=ADA)
    harness.empty()
    supervisor.end("stopped")
    job = harness.job(job_id)
    assert (job.state, job.pending) == (JobState.FAILED, None)
    assert "Resume" in job.reason


def test_a_node_that_is_about_to_go_is_left_by_every_node_of_its_attempts(
    harness: Harness, context: Context
) -> None:
    def beat(node: str, notice: str | None) -> None:
        node_heartbeat(
            context, NodeHeartbeat(protocol=PROTOCOL, node=node, worker=WORKER, notice=notice)
        )

    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id, (leader, other) = harness.running(**TWO_NODES)
    beat("b", "taken back at noon")
    beat("b", "taken back at noon")
    harness.empty()
    assert leader.train(2) == DesiredState.STOP, "rank 0 runs on a node that stays"
    other.end("failed", FailureReason.PREEMPTED)
    leader.end("stopped")
    assert harness.attempt(job_id).failure.reason == FailureReason.PREEMPTED
    assert harness.job(job_id).state == JobState.QUEUED
    view = list_nodes(context, scope=SYSTEM_SCOPE)[1]
    assert (view.draining, view.drain, view.notice) == (True, None, "taken back at noon")
    assert harness.place() == 0
    beat("b", None)
    assert harness.place() == 1
    assert messages(context) == [
        "b is about to go: taken back at noon",
        "b stays after all",
    ]


def test_a_lost_share_of_an_attempt_that_ended_is_ordered_nothing(
    harness: Harness, context: Context
) -> None:
    beat(context)
    harness.add_node("a", slots=4)
    job_id, _ = harness.running(
        training={"global_batch_size": 8, "micro_batch_size": 2},
        resources={"world_size": 4, "min_world_size": 2},
    )
    harness.add_node("b", slots=4)
    lost = harness.attempt(job_id)
    pass_time(harness, LEASE + 1, silent={"a"})
    for _ in range(2):  # unreachable, then lost
        harness.reconciler.run()
    assert share_of(harness, lost.id, "a").lost_at is not None
    assert harness.attempt(job_id).state == AttemptState.ENDED
    set_drain(context, "a", "move", actor=ADA)
    assert harness.empty() == 0


def messages(context: Context) -> list[str]:
    """Return the messages of the events about emptied nodes."""
    drained = select(events.c.message).where(events.c.kind == EventKind.NODE_DRAINED)
    with context.database.read() as connection:
        return list(connection.scalars(drained.order_by(events.c.id)))
