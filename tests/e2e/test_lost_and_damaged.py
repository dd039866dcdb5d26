"""A node is lost with unreported commits, and checkpoints are damaged on storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.control_plane import (
    ControlPlane,
    assert_each_once,
    finished,
    in_state,
    spec,
    wait_for,
)
from tests.e2e.workers import joined_node
from trainyard.client.sdk import Client
from trainyard.protocol.rest.event_data import CheckpointCommitted
from trainyard.protocol.states import JobState
from trainyard.run.checkpoint_faults import CheckpointFault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 60


def test_commits_of_a_lost_node_that_the_server_did_not_hear_are_found(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    yard.drain(plane.node)
    try:
        with joined_node(plane, yard, tmp_path / "doomed") as doomed:
            wanted = spec("lost", training={"steps": STEPS}, retry={"node_lost_after_seconds": 1})
            job_id = yard.submit(wanted).id
            run = plane.run(job_id, node=doomed.data)
            run.hold_at(12)
            heard = wait_for(
                lambda: [c.step for c in yard.checkpoints(job_id) if c.step], "the first commit"
            )
            with plane.killed("server", yard):
                run.go_on()
                step = run.hold_at(32)
                doomed.kill_all()
    finally:
        yard.undrain(plane.node)
    assert (heard, step < STEPS - 10) == ([10], True)
    unheard = list(range(20, step + 1, 10))
    job = finished(yard, job_id)
    second, first = yard.attempts(job_id)
    assert first.failure is not None
    assert (first.failure.reason, first.nodes[0].node) == ("node_lost", doomed.name)
    assert (job.state, job.retries_left) == ("succeeded", job.spec.retry.max_retries)
    assert (second.cause, second.start_step) == ("retry", unheard[-1])
    assert second.parent_checkpoint_id == f"{job_id}.a1.step-{unheard[-1]}"
    assert second.nodes[0].node == plane.node
    found = [e.data for e in yard.events(job_id) if e.actor == "recovery"]
    assert {e.step for e in found if isinstance(e, CheckpointCommitted)} == {*unheard}
    (search,) = (c for c in yard.operations(job_id=job_id) if c.kind == "recover")
    assert (search.state, search.node) == ("succeeded", plane.node)
    assert (plane.folders.checkpoints / job_id / "FENCE").read_text().strip() == "2"
    assert {c.step for c in yard.checkpoints(job_id)} == {0, *range(10, STEPS + 1, 10)}


def damage(plane: ControlPlane, checkpoint_id: str) -> None:
    """Flip one bit in the middle of a data file."""
    job_id, attempt, step = checkpoint_id.split(".")
    data = next((plane.folders.checkpoints / job_id / attempt / step).glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def stopped(plane: ControlPlane, yard: Client, name: str) -> tuple[str, list[str]]:
    """Train a job past step 20 and stop it; return it with its checkpoints, the newest first."""
    job_id = yard.submit(spec(name)).id
    plane.run(job_id).hold_at(22)
    yard.stop(job_id)
    plane.run(job_id).go_on()
    in_state(yard, job_id, JobState.STOPPED)
    return job_id, [c.id for c in yard.checkpoints(job_id)]


def test_a_resume_names_damage_and_goes_on_from_the_newest_usable_ancestor(
    plane: ControlPlane, yard: Client
) -> None:
    job_id, (newest, older, *_) = stopped(plane, yard, "rotten")
    damage(plane, newest)
    assert yard.checkpoint(newest).verification is None
    yard.resume(job_id)
    job = finished(yard, job_id)
    third, second, _ = yard.attempts(job_id)
    assert (second.cause, second.parent_checkpoint_id) == ("resume", newest)
    assert second.failure is not None
    assert second.failure.reason == "checkpoint_error"
    assert second.failure.load is not None
    assert (second.failure.load.checkpoint_id, second.failure.load.fault) == (
        newest,
        CheckpointFault.FILE_DAMAGED,
    )
    marked = yard.checkpoint(newest).verification
    assert marked is not None
    assert (marked.ok, marked.fault) == (False, CheckpointFault.FILE_DAMAGED)
    assert (job.state, job.retries_left) == ("succeeded", job.spec.retry.max_retries)
    assert (third.cause, third.parent_checkpoint_id, third.start_step) == ("retry", older, 20)
    assert third.continuity is not None
    assert third.continuity.ok, third.continuity
    (told,) = (e for e in yard.events(job_id) if e.kind == "checkpoint_damaged")
    assert told.data == {"checkpoint_id": newest, "fault": "file_damaged"}
    points = assert_each_once(yard, job_id, steps=40)
    assert points.attempts == {step: 1 if step <= 20 else 3 for step in range(1, 41)}


def test_a_checkpoint_that_a_person_names_is_not_replaced(
    plane: ControlPlane, yard: Client
) -> None:
    job_id, (newest, *others) = stopped(plane, yard, "named")
    damage(plane, newest)
    yard.resume(job_id, checkpoint_id=newest)
    job = finished(yard, job_id)
    second, _ = yard.attempts(job_id)
    assert (job.state, second.parent_checkpoint_id) == ("failed", newest)
    assert "was named, so no other one replaces it" in str(job.reason)
    assert newest in str(job.reason)
    # A resume without a checkpoint uses the newest usable one.
    yard.resume(job_id)
    assert finished(yard, job_id).state == "succeeded"
    assert next(yard.attempts(job_id)).parent_checkpoint_id == others[0]
