"""Nodes cordoned by the server, for errors of their GPUs and for failures of attempts."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from server.cluster.nodes.changes import cordon_by_server, set_drain
from server.cluster.nodes.queries import list_nodes
from server.core.context import Context
from server.core.database.tables import events, jobs
from server.core.isolation import FAILED_PAUSE
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.scheduler.rounds import cordon
from server.scheduler.rounds.cordon import NodeWatch
from tests.actors import ADA, EVE
from tests.server.harness import WORKER, Harness
from trainyard.protocol.node_samples import AcceleratorSample, HostSample, NodeSample, XidError
from trainyard.protocol.rest.nodes import Drain
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat
from trainyard.run.failures import FailureReason

HOST = HostSample(load=0.5, memory_bytes=1000, memory_used_bytes=400)
ALWAYS: dict[str, Any] = {"retry": {"max_retries": 9, "backoff_seconds": 0}}


def drain_of(context: Context, name: str) -> Drain | None:
    return next(view.drain for view in list_nodes(context, scope=SYSTEM_SCOPE) if view.name == name)


def beat(context: Context, name: str, *xids: XidError) -> None:
    sample = NodeSample(host=HOST, accelerators=(AcceleratorSample(uuid="GPU-a", xids=xids),))
    node_heartbeat(
        context, NodeHeartbeat(protocol=PROTOCOL, node=name, worker=WORKER, sample=sample)
    )


def fail(
    harness: Harness,
    job_id: str,
    reason: FailureReason = FailureReason.LAUNCH_ERROR,
    *,
    node_at_fault: bool = True,
) -> None:
    """Place a job, and fail the first share of its attempt."""
    harness.clock.advance(60)
    assert harness.place() >= 1
    supervisor = harness.claim_all(job_id)[0]
    supervisor.end("failed", reason=reason, names_node=True, node_at_fault=node_at_fault)


@pytest.fixture
def watch(context: Context) -> NodeWatch:
    return NodeWatch(context)


def test_an_xid_of_broken_hardware_cordons_at_once_and_what_runs_goes_on(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.running()
    beat(context, "a", XidError(code=79, age_seconds=3.0))
    drain = drain_of(context, "a")
    assert drain is not None
    assert (drain.running, drain.by) == ("finish", "server")
    assert drain.reasons == ("GPU-a: Xid 79, the GPU has fallen off the bus",)
    assert harness.empty() == 0
    assert supervisor.train(2) == "run"
    assert harness.job(job_id).state == "running"
    beat(context, "a", XidError(code=79, age_seconds=8.0))
    with context.database.read() as connection:
        rows = connection.execute(
            select(events.c.actor, events.c.message).where(events.c.kind == "node_drained")
        ).all()
    assert [tuple(row) for row in rows] == [
        (
            "server",
            "a: nothing new is placed; running jobs finish "
            "(GPU-a: Xid 79, the GPU has fallen off the bus)",
        )
    ]


def test_after_an_uncordon_only_later_errors_count(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    beat(context, "a", XidError(code=48, age_seconds=3.0))
    harness.clock.advance(100)
    set_drain(context, "a", None, actor=ADA)
    harness.clock.advance(5)
    beat(context, "a", XidError(code=48, age_seconds=108.0))
    assert drain_of(context, "a") is None
    beat(context, "a", XidError(code=48, age_seconds=109.0), XidError(code=48, age_seconds=1.0))
    assert drain_of(context, "a") is not None


def test_an_error_leaves_the_drain_of_a_person_as_it_is(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    set_drain(context, "a", "move", actor=ADA)
    beat(context, "a", XidError(code=79, age_seconds=3.0))
    drain = drain_of(context, "a")
    assert drain is not None
    assert (drain.running, drain.by, drain.reasons) == ("move", "ada", ())


def trained(harness: Harness, *steps: int) -> list[str]:
    """Return jobs with these numbers of trained steps, which wait for their next launches."""
    job_ids = [harness.submit(training={"steps": number}, **ALWAYS) for number in steps]
    assert harness.place() == len(job_ids)
    for job_id in job_ids:
        (supervisor,) = harness.claim_all(job_id)
        supervisor.train(1)
        supervisor.end("failed", reason=FailureReason.TRAINER_ERROR)
    return job_ids


def test_a_node_on_which_jobs_keep_failing_is_cordoned_with_its_reasons(
    harness: Harness, context: Context, watch: NodeWatch
) -> None:
    harness.add_node("b")
    (first,) = trained(harness, 100)
    set_drain(context, "b", "move", actor=ADA)  # so that all go to a
    harness.add_node("a")
    fail(harness, first)
    fail(harness, first)
    assert watch.run() == 0
    second = harness.submit(training={"steps": 7}, **ALWAYS)
    harness.clock.advance(60)
    assert harness.place() == 2
    for job_id in (first, second):
        harness.claim_all(job_id)[0].end("failed", reason=FailureReason.NODE_LOST, names_node=True)
    harness.clock.advance(60)
    assert watch.run() == 0
    assert drain_of(context, "a") is None, "the last node that takes work is never cordoned"
    set_drain(context, "b", None, actor=ADA)
    assert NodeWatch(context).run() == 1
    drain = drain_of(context, "a")
    assert drain is not None
    assert (drain.running, drain.by) == ("finish", "server")
    assert drain.reasons == ("4 attempts failed because of it: 2 launch_error, 2 node_lost",)
    set_drain(context, "a", None, actor=ADA)
    assert NodeWatch(context).run() == 0, "a person trusts the node again"


def test_the_last_node_warns_once_for_its_newest_failure(
    harness: Harness, context: Context, watch: NodeWatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.add_node("a")
    jobs = [harness.submit(training={"steps": steps}, **ALWAYS) for steps in (7, 8, 9)]
    harness.place()
    for job_id in jobs:
        fail_claimed(harness, job_id)
    for _ in range(3):
        harness.clock.advance(100)
        assert watch.run() == 0
    warnings = [each.message for each in caplog.records if "last of its kind" in each.message]
    words = "a: 3 attempts failed because of it: 3 launch_error; it is the last of its kind"
    assert warnings == [words]


def fail_claimed(harness: Harness, job_id: str) -> None:
    supervisor = harness.claim_all(job_id)[0]
    supervisor.end("failed", reason=FailureReason.LAUNCH_ERROR, names_node=True, node_at_fault=True)


def test_one_job_or_jobs_of_one_spec_cordon_nothing(
    harness: Harness, context: Context, watch: NodeWatch
) -> None:
    """A job can fail deliberately on one node, and train on another."""
    harness.add_node("b")
    jobs = trained(harness, 100)
    set_drain(context, "b", "finish", actor=ADA)
    harness.add_node("a")
    jobs += [
        harness.submit(name=f"again-{number}", training={"steps": 100}, **ALWAYS)
        for number in range(2)
    ]
    for _ in range(3):
        harness.clock.advance(60)
        harness.place()
        for job_id in jobs:
            fail_claimed(harness, job_id)
    set_drain(context, "b", None, actor=ADA)
    harness.clock.advance(60)
    assert watch.run() == 0
    assert drain_of(context, "a") is None


def test_one_person_of_several_cordons_nothing(
    harness: Harness, context: Context, watch: NodeWatch
) -> None:
    harness.add_node("b")
    of_eve = trained(harness, 7, 8, 9)
    submitted_by(context, EVE, *of_eve)
    harness.add_node("c")
    set_drain(context, "b", "finish", actor=ADA)
    of_ada = harness.submit(training={"steps": 99}, **ALWAYS)
    harness.clock.advance(60)
    assert harness.place() == 4
    for job_id in of_eve:
        fail_claimed(harness, job_id)
    harness.claim_all(of_ada)[0].end("succeeded")
    set_drain(context, "b", None, actor=ADA)
    harness.clock.advance(60)
    assert watch.run() == 0
    assert drain_of(context, "c") is None
    submitted_by(context, ADA, of_eve[0])
    assert NodeWatch(context).run() == 1
    assert drain_of(context, "c") is not None


def submitted_by(context: Context, actor: Actor, *job_ids: str) -> None:
    mine = update(jobs).where(jobs.c.id.in_(job_ids)).values(token_id=actor.token_id)
    with context.database.write() as connection:
        connection.execute(mine)


def test_an_error_for_one_node_keeps_no_other_from_its_cordon(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = NodeWatch(context)
    harness.add_node("b", slots=6)
    job_ids = trained(harness, 7, 8, 9, 17, 18, 19)
    set_drain(context, "b", "finish", actor=ADA)
    for name in "ac":
        harness.add_node(name, slots=3)
    harness.clock.advance(60)
    assert harness.place() == 6
    reasons = {"a": FailureReason.LAUNCH_ERROR, "c": FailureReason.NODE_LOST}
    for job_id in job_ids:
        (supervisor,) = harness.claim_all(job_id)
        supervisor.end("failed", reasons[supervisor.node], names_node=True, node_at_fault=True)
    set_drain(context, "b", None, actor=ADA)
    harness.clock.advance(60)

    def fails(*args: Any, name: str, **named: Any) -> None:
        if name == "a":
            raise ValueError("of one node alone")
        cordon_by_server(*args, name=name, **named)

    with monkeypatch.context() as patch:
        patch.setattr(cordon, "cordon_by_server", fails)
        assert watch.run() == 1
    assert (drain_of(context, "a"), drain_of(context, "c") is None) == (None, False)
    assert watch.judge_again() == 0, "the node is left out for a while"
    harness.clock.advance(FAILED_PAUSE.total_seconds())
    assert watch.judge_again() == 1
    assert drain_of(context, "a") is not None


def test_evidence_that_comes_later_counts(
    harness: Harness, context: Context, watch: NodeWatch
) -> None:
    harness.add_node("a", slots=3)
    later = {"retry": {"max_retries": 9, "backoff_seconds": 30}}
    job_ids = [harness.submit(training={"steps": steps}, **later) for steps in (7, 8, 9)]
    assert harness.place() == 3
    for job_id in job_ids:
        fail_claimed(harness, job_id)
    harness.submit(resources={"world_size": 3})
    assert harness.place() == 1, "it takes all slots of a"
    harness.add_node("b")
    harness.clock.advance(60)
    assert watch.run() == 0
    assert harness.place() == 3
    harness.claim_all(job_ids[0])[0].train(2)
    harness.clock.advance(60)
    assert watch.run() == 0, "nothing has failed since"
    assert watch.judge_again() == 1
    assert drain_of(context, "a") is not None


@pytest.mark.parametrize("reason", [FailureReason.TRAINER_ERROR, FailureReason.LAUNCH_ERROR])
def test_failures_of_the_job_cordon_nothing(
    harness: Harness, context: Context, watch: NodeWatch, reason: FailureReason
) -> None:
    harness.add_node("a")
    harness.add_node("b")
    for _ in range(2):
        job_id = harness.submit(resources={"exclude_nodes": ["b"]}, **ALWAYS)
        for _ in range(2):
            fail(harness, job_id, reason, node_at_fault=False)
        harness.clock.advance(1000)
        assert watch.run() == 0
    assert all(view.drain is None for view in list_nodes(context, scope=SYSTEM_SCOPE))


def test_a_clock_that_is_set_back_delays_no_cordon(
    harness: Harness, context: Context, watch: NodeWatch
) -> None:
    harness.add_node("b")
    (first,) = trained(harness, 100)
    set_drain(context, "b", "finish", actor=ADA)
    harness.add_node("a")
    assert watch.run() == 0
    harness.clock.advance(-1800)
    fail(harness, first)
    fail(harness, first)
    fail(harness, harness.submit(training={"steps": 7}, **ALWAYS))
    set_drain(context, "b", None, actor=ADA)
    assert watch.run() == 1
    assert drain_of(context, "a") is not None


def test_failures_age(harness: Harness, context: Context, watch: NodeWatch) -> None:
    harness.add_node("a")
    harness.add_node("b", device="cpu")
    window = context.settings.cordon_window_seconds
    jobs = [harness.submit(resources={"exclude_nodes": ["b"]}, **ALWAYS) for _ in range(1)]
    fail(harness, jobs[0])
    fail(harness, jobs[0])
    assert watch.run() == 0
    harness.clock.advance(window)
    other = harness.submit(resources={"exclude_nodes": ["b"]}, **ALWAYS)
    assert harness.place() == 2
    harness.claim_all(other)[0].end("failed", reason=FailureReason.LAUNCH_ERROR, node_at_fault=True)
    harness.clock.advance(10)
    assert watch.run() == 0
    assert drain_of(context, "a") is None


def test_no_node_has_another_one_cordoned(
    harness: Harness, context: Context, watch: NodeWatch
) -> None:
    """The node that a report blames does not count: only the node that sends it does."""
    harness.add_node("b")
    jobs = trained(harness, 7, 8, 9)
    set_drain(context, "b", "finish", actor=ADA)
    harness.add_node("a")
    harness.clock.advance(60)
    assert harness.place() == 3
    for job_id in jobs:
        (supervisor,) = harness.claim_all(job_id)
        supervisor.end("failed", FailureReason.LAUNCH_ERROR, names="b", node_at_fault=True)
        assert harness.attempt(job_id).failure.node == "a"
    set_drain(context, "b", None, actor=ADA)
    harness.clock.advance(6)
    assert watch.run() == 1
    assert drain_of(context, "b") is None
    assert drain_of(context, "a") is not None
