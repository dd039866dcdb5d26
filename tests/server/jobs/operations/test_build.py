"""Environments of locks: queued by an attempt, awaited, built once per storage."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from server.core.context import Context
from server.core.database.tables import nodes
from server.core.liveness import beat
from server.jobs.jobs.service import cancel as cancel_job
from server.jobs.jobs.service import delete as delete_job
from server.jobs.operations.cancel import cancel
from tests.actors import ADA
from tests.server.harness import AnyRow, Harness
from tests.server.yard import Yard
from trainyard.protocol.operations import MAX_TRIES, OperationKind, OperationOutcome
from trainyard.protocol.states import AttemptState, JobState, OperationState
from trainyard.run.failures import FailureReason

DIGEST, OTHER = "a" * 64, "b" * 64
BROKEN = OperationOutcome(outcome="failed", message="uv pip ended. Hash mismatch")
BUILT = OperationOutcome(outcome="succeeded", message="built")


@pytest.fixture
def allow_code() -> bool:
    """The server accepts jobs that bring code."""
    return True


def sections(**environment: Any) -> dict[str, Any]:
    program = {
        "command": ["train.py"],
        "code": {"folder": "data:mine"},
        "environment": {"lock": "uv.lock", **environment},
    }
    return {"program": program}


def add_nodes(harness: Harness) -> None:
    """Give `node-1` a network, and add a node without."""
    label(harness, "node-1")
    harness.add_node("offline")


def label(harness: Harness, node: str) -> None:
    with harness.context.database.write() as connection:
        labelled = update(nodes).where(nodes.c.name == node)
        connection.execute(labelled.values(worker_labels={"network": "true"}))


def needs(harness: Harness, digest: str = DIGEST, **environment: Any) -> str:
    """Launch a job without its environment; return its id when it is due again."""
    job_id, (supervisor,) = harness.launched(**sections(**environment))
    end(harness, supervisor, digest)
    return job_id


def end(harness: Harness, supervisor: Any, digest: str) -> None:
    supervisor.end(
        "failed",
        FailureReason.LAUNCH_ERROR,
        names_node=True,
        free_retry=True,
        environment=digest,
    )
    harness.clock.advance(2)


def builds(yard: Yard) -> list[AnyRow]:
    return yard.operations(kind=OperationKind.BUILD.value)


def test_a_job_waits_until_its_environment_is_built(yard: Yard, harness: Harness) -> None:
    add_nodes(harness)
    job_id = needs(harness)
    (build,) = builds(yard)
    task = build.task.read("task")
    assert (task.build.digest, task.root, build.storage) == (DIGEST, "checkpoints", "root-1")
    assert harness.place() == 0
    assert harness.job(job_id).reason == "waits until environment aaaaaaaaaaaa is built"
    assert yard.give() == [(build.id, "node-1")]
    yard.claim(build.id)
    assert harness.place() == 0
    yard.report(build.id, outcome=BUILT)
    assert harness.place() == 1
    assert harness.attempt(job_id).number == 2
    assert harness.job(job_id).retries_used == 0


def test_two_jobs_with_one_lock_build_once(yard: Yard, harness: Harness) -> None:
    add_nodes(harness)
    label(harness, "offline")
    first, second = needs(harness), needs(harness)
    one, two = builds(yard)
    assert len(yard.give()) == 1
    why = "waits for the build of the same environment for another job"
    assert builds(yard)[1].waiting == why
    assert harness.place() == 0
    assert harness.job(second).reason == (f"waits until environment aaaaaaaaaaaa is built ({why})")
    node = builds(yard)[0].node
    yard.claim(one.id, node)
    assert yard.give() == []
    yard.report(one.id, node=node, outcome=BUILT)
    assert harness.place() == 1
    assert harness.job(first).state == JobState.STARTING
    ((given, other),) = yard.give()
    assert given == two.id
    yard.claim(two.id, other)
    yard.report(two.id, node=other, outcome=BUILT)
    assert harness.place() == 1


def test_other_locks_and_other_storage_are_built_at_once(yard: Yard, harness: Harness) -> None:
    add_nodes(harness)
    label(harness, "offline")
    needs(harness)
    needs(harness, root="data")
    assert [build.storage for build in builds(yard)] == ["root-1", "root-2"]
    assert len(yard.give()) == 2


def test_without_a_network_the_job_names_what_is_missing(yard: Yard, harness: Harness) -> None:
    job_id = needs(harness)
    assert yard.give() == []
    assert harness.place() == 0
    reason = harness.job(job_id).reason
    assert reason.startswith("waits until environment aaaaaaaaaaaa is built (no node")
    assert "network=true" in reason


def test_a_broken_lock_fails_the_job_with_the_last_lines(yard: Yard, harness: Harness) -> None:
    add_nodes(harness)
    job_id = needs(harness)
    (build,) = builds(yard)
    yard.give()
    yard.claim(build.id)
    yard.report(build.id, outcome=BROKEN)
    job = harness.job(job_id)
    assert job.state == JobState.FAILED
    assert job.reason.startswith("launch_error: build the environment of tiny failed: uv pip ended")
    assert "Hash mismatch" in job.reason
    assert harness.place() == 0
    (ended,) = yard.said(job_id, "job_ended")
    assert "Hash mismatch" in ended.message


def test_a_build_that_is_cancelled_fails_the_job(
    context: Context, yard: Yard, harness: Harness
) -> None:
    add_nodes(harness)
    job_id = needs(harness)
    (build,) = builds(yard)
    cancel(context, build.id, actor=ADA)
    job = harness.job(job_id)
    assert (job.state, "taken back by ada" in job.reason) == (JobState.FAILED, True)


def test_a_builder_that_is_lost_three_times_fails_the_job(yard: Yard, harness: Harness) -> None:
    add_nodes(harness)
    job_id = needs(harness)
    (build,) = builds(yard)
    for _ in range(MAX_TRIES):
        ((_, node),) = yard.give()
        yard.claim(build.id, node)
        for _ in range(int(harness.context.settings.lease_seconds * 1.1)):
            harness.clock.advance(1)
            beat(harness.context)
        harness.keeper._judge(harness.context.now())
    assert harness.job(job_id).state == JobState.FAILED
    assert "given up after 3 tries" in harness.job(job_id).reason


@pytest.mark.parametrize("outcome", [BUILT, BROKEN])
def test_a_job_that_has_ended_is_left_alone(
    context: Context, yard: Yard, harness: Harness, outcome: OperationOutcome
) -> None:
    add_nodes(harness)
    job_id = needs(harness)
    (build,) = builds(yard)
    yard.give()
    yard.claim(build.id)
    cancel_job(context, job_id, actor=ADA, reason="")
    delete_job(context, job_id, actor=ADA, checkpoints="keep")
    yard.report(build.id, outcome=outcome)
    assert builds(yard)[0].state == outcome.outcome


def test_nothing_is_built_for_a_job_without_a_lock_or_on_a_strange_digest(
    yard: Yard, harness: Harness
) -> None:
    add_nodes(harness)
    other = needs(harness, "../../up")
    assert harness.place() == 1
    job_id, (supervisor,) = harness.launched()
    end(harness, supervisor, DIGEST)
    assert builds(yard) == []
    assert harness.place() == 1
    assert harness.attempt(job_id).state == AttemptState.PLACED
    assert harness.attempt(other).state == AttemptState.PLACED


def test_a_stop_while_the_environment_is_missed_builds_nothing(
    context: Context, yard: Yard, harness: Harness
) -> None:
    add_nodes(harness)
    job_id, (supervisor,) = harness.launched(**sections())
    cancel_job(context, job_id, actor=ADA, reason="")
    end(harness, supervisor, DIGEST)
    assert builds(yard) == []
    assert harness.job(job_id).state in {JobState.FAILED, JobState.CANCELLED}
    assert OperationState.QUEUED not in {row.state for row in yard.operations()}
