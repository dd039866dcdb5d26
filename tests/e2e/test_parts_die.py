"""Each part of the control plane dies during training, which is not affected."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.e2e.control_plane import (
    LEASE_SECONDS,
    ControlPlane,
    Follower,
    assert_each_once,
    assert_told_once,
    finished,
    spec,
    wait_for,
)
from trainyard.client.sdk import Client
from worker.node.process_identity import ProcessStat, process_stat
from worker.node.process_tree import descendants

pytestmark = pytest.mark.timeout(400)
STEPS = 60
PARTS = ("server", "worker", "scheduler", "broker")


def all_ended(processes: list[ProcessStat]) -> bool:
    """Return whether all of these processes have ended."""
    now = [process_stat(process.pid) for process in processes]
    return all(
        n is None or n.ended or n.start_time != p.start_time
        for n, p in zip(now, processes, strict=True)
    )


def test_training_goes_on_whatever_dies(
    plane: ControlPlane, yard: Client, follower: Follower
) -> None:
    job_id = yard.submit(spec("unmoved", training={"steps": STEPS})).id
    run = plane.run(job_id)
    step = run.hold_at(2)
    supervisor, ranks = run.supervisor_pid(), [run.rank_pid(0), run.rank_pid(1)]
    for part in PARTS:
        below = descendants(plane.part(part).pid)
        run.go_on()
        with plane.killed(part, yard):
            step = run.hold_at(step + 3)
            assert step < STEPS - 5
            if part == "server":  # its outage lasts for longer than a lease
                time.sleep(LEASE_SECONDS + 2)
        wait_for(partial(all_ended, below), f"end of what the {part} had started")
    run.go_on()
    job = finished(yard, job_id)
    assert (job.state, job.attempt) == ("succeeded", 1)
    assert run.supervisor_pid() == supervisor
    assert [run.rank_pid(0), run.rank_pid(1)] == ranks
    assert run.steps() == list(range(1, STEPS + 1))
    assert_each_once(yard, job_id, steps=STEPS)
    kinds = [event.kind for event in assert_told_once(yard, job_id, follower)]
    assert kinds.count("checkpoint_committed") == 1 + STEPS // 10
    assert [kind for kind in kinds if kind != "checkpoint_committed"] == [
        *("submitted", "placed", "claimed", "running", "node_ended", "attempt_ended", "job_ended")
    ]
