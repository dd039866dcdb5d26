"""A rank or the supervisor dies in the middle of training: named, cleaned up, retried."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.control_plane import (
    ControlPlane,
    Follower,
    Run,
    assert_each_once,
    assert_told_once,
    course,
    finished,
    processes_with,
    spec,
    wait_for,
)
from trainyard.client.sdk import Client
from trainyard.protocol.record_parser import parse_record
from trainyard.run.failures import REMEDIES, FailureReason
from trainyard.run.records import ExitRecord

pytestmark = pytest.mark.timeout(400)
SOON = 10.0


def attempt_id(run: Run) -> str:
    """Return the id in the environment of every process of the attempt."""
    launch: dict[str, str] = json.loads(Path(run.files.root, "launch.json").read_bytes())
    return launch["attempt_id"]


def kill_rank_in_collective(run: Run, *, after: int) -> tuple[int, float]:
    """Kill rank 1 while rank 0 waits for it; return the completed step and the time."""
    step = run.hold_at(after)
    time.sleep(0.5)  # rank 0 reaches its collective meanwhile
    os.kill(run.rank_pid(1), signal.SIGKILL)
    return step, time.time()


def assert_named_and_gone(plane: ControlPlane, run: Run, *, killed_at: float) -> None:
    """Check that the record names rank and signal within ten seconds, and no process remains."""
    path = Path(run.files.exit)
    wait_for(path.exists, "exit record")
    mark = f"TRAINYARD_ATTEMPT_ID={attempt_id(run)}"
    assert processes_with(mark, f"TRAINYARD_NODE={plane.node}") == []
    record = parse_record(ExitRecord, path.read_bytes())
    assert record.time - killed_at < SOON
    assert record.failure is not None
    assert (record.failure.rank, record.failure.signal) == (1, "SIGKILL")
    first = record.ranks[0]
    assert (first.rank, first.signal, first.exit_code) == (1, "SIGKILL", None)
    assert abs(first.time - killed_at) < 2


def test_a_killed_rank_is_named_and_the_job_goes_on(
    plane: ControlPlane, yard: Client, follower: Follower
) -> None:
    job_id = yard.submit(spec("wounded", retry={"max_retries": 1})).id
    run = plane.run(job_id)
    step, killed_at = kill_rank_in_collective(run, after=12)
    assert 12 <= step < 40
    assert_named_and_gone(plane, run, killed_at=killed_at)
    job = finished(yard, job_id)
    second, first = yard.attempts(job_id)
    assert (job.state, job.retries_left) == ("succeeded", 0)
    assert first.failure is not None
    assert first.ended_at is not None
    assert (first.outcome, first.failure.reason) == ("failed", "trainer_error")
    assert (first.failure.rank, first.failure.signal) == (1, "SIGKILL")
    killed = f"rank 1 (pid {run.rank_pid(1)}) was ended by SIGKILL"
    assert killed in first.failure.message
    assert first.failure.remedy == REMEDIES[FailureReason.TRAINER_ERROR]
    assert first.ended_at.timestamp() - killed_at < SOON
    newest = step // 10 * 10
    assert (second.cause, second.start_step) == ("retry", newest)
    assert second.continuity is not None
    assert second.continuity.ok
    points = assert_each_once(yard, job_id, steps=40)
    assert points.attempts == {s: 1 if s <= newest else 2 for s in range(1, 41)}
    kinds = [event.kind for event in assert_told_once(yard, job_id, follower)]
    assert kinds.count("attempt_ended") == 2
    assert kinds.count("job_ended") == 1


@pytest.mark.slow
def test_a_branch_that_is_killed_stays_on_its_branch(plane: ControlPlane, yard: Client) -> None:
    job_id = yard.submit(spec("tree")).id
    assert finished(yard, job_id).state == "succeeded"
    older = {c.step: c.id for c in yard.checkpoints(job_id)}[10]
    yard.resume(job_id, checkpoint_id=older)
    run = plane.run(job_id, attempt=2)
    step, _ = kill_rank_in_collective(run, after=22)
    assert 22 <= step < 40
    assert finished(yard, job_id).state == "succeeded"

    third, second, first = yard.attempts(job_id)
    assert [a.start_step for a in (first, second, third)] == [0, 10, step // 10 * 10]
    assert [a.on_lineage for a in (first, second, third)] == [True, True, True]
    assert second.parent_checkpoint_id == older
    saved = {(c.attempt, c.step): c for c in yard.checkpoints(job_id)}
    twice = step // 10 * 10
    assert {(1, twice), (2, twice)} <= set(saved)  # the same step, in addition to the abandoned one
    assert third.parent_checkpoint_id == saved[2, twice].id
    assert not saved[1, twice].on_lineage
    assert saved[2, twice].on_lineage

    steps = {
        curve.branch: (curve.first_steps[0], curve.steps[-1])
        for curve in yard.metrics(job_id, names=("train/loss",)).curves
    }
    assert steps["lineage"] == (1, 40)
    assert steps["attempt-1"][1] == 40
    points = assert_each_once(yard, job_id, steps=40)
    assert set(points.attempts.values()) == {1, 2, 3}
    # The same sequences again: the data order depends only on the step.
    abandoned = course_of_attempt(yard, job_id, 1)
    assert {s: points.values["data_digest", s] for s in range(1, 41)} == abandoned


def course_of_attempt(yard: Client, job_id: str, attempt: int) -> dict[int, str]:
    """Return the digests of one attempt's own steps."""
    lines = yard.metrics_csv(job_id, names=("data_digest",), attempt=attempt)
    next(lines)
    cells = [line.split(",") for line in lines]
    return {int(step): value for _, step, _, _, value in cells}


@pytest.mark.slow
def test_a_killed_supervisor_is_proved_gone_and_the_job_goes_on(
    plane: ControlPlane, yard: Client
) -> None:
    job_id = yard.submit(spec("orphan")).id
    run = plane.run(job_id)
    step = run.hold_at(12)
    os.kill(run.supervisor_pid(), signal.SIGKILL)
    mark = f"TRAINYARD_ATTEMPT_ID={attempt_id(run)}"
    wait_for(lambda: not processes_with(mark), "end of the ranks")
    job = finished(yard, job_id)
    second, first = yard.attempts(job_id)
    assert (job.state, first.outcome) == ("succeeded", "failed")
    assert first.failure is not None
    assert first.failure.reason == "launch_error"
    assert "supervisor" in first.failure.message
    assert (second.cause, second.start_step) == ("retry", step // 10 * 10)
    points = assert_each_once(yard, job_id, steps=40)
    # Its unsent records were sent for it, up to the end of the lineage.
    assert points.attempts[step // 10 * 10] == 1
    assert course(yard, job_id) == points
