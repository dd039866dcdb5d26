"""A job is resumed after its run directory was removed: checkpoints are stored elsewhere."""

from __future__ import annotations

import pytest

from tests.e2e.control_plane import (
    ONE_RANK,
    ControlPlane,
    assert_each_once,
    finished,
    spec,
    wait_for,
)
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState
from worker.node.node_store import NodeStore
from worker.upkeep.run_cleaner import RunCleaner

pytestmark = pytest.mark.timeout(400)
STEPS = 12


def test_a_job_goes_on_without_the_run_directory_of_its_first_attempt(
    plane: ControlPlane, yard: Client
) -> None:
    store = NodeStore(plane.folders.node)
    cleaner = RunCleaner(store, plane.node, days=0)
    job_id = yard.submit(spec("cleaned", training={"steps": STEPS}, resources=ONE_RANK)).id
    run = plane.run(job_id)
    run.hold_at(3)
    cleaner.clean()  # the job runs
    assert run.files.root.exists()
    yard.stop(job_id)
    run.go_on_to_stop()
    stopped = finished(yard, job_id)
    assert stopped.state == JobState.STOPPED
    wait_for(lambda: not store.live(), "the end of the supervisor")
    assert cleaner.clean() >= 1
    assert not (store.runs / job_id).exists()
    yard.resume(job_id)
    done = finished(yard, job_id)
    assert (done.state, done.attempt, done.progress.step) == (JobState.SUCCEEDED, 2, STEPS)
    second, first = yard.attempts(job_id)
    assert second.start_step == first.last_step == stopped.progress.step
    assert second.continuity is not None
    assert second.continuity.ok, second.continuity
    assert_each_once(yard, job_id, steps=STEPS)
    assert (store.runs / job_id / "2").is_dir()
