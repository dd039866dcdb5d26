"""Machines that fail and tokens that are copied: training goes on, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.control_plane import (
    LEASE_SECONDS,
    ControlPlane,
    assert_each_once,
    disk_of,
    finished,
    spec,
    wait_for,
)
from tests.e2e.workers import started_worker
from trainyard.client.sdk import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("whole", [False, True], ids=["token", "folder"])
def test_a_second_worker_with_the_token_of_a_node_is_refused(
    plane: ControlPlane, yard: Client, tmp_path: Path, *, whole: bool
) -> None:
    job_id = yard.submit(spec("unmoved")).id
    run = plane.run(job_id)
    run.hold_at(2)
    copy = tmp_path / "node"
    if whole:
        shutil.copytree(plane.folders.node, copy, ignore=shutil.ignore_patterns("*.sock"))
    else:
        copy.mkdir()
        shutil.copy2(plane.folders.node / "node.token", copy)
    with started_worker(plane, copy, name=plane.node) as second:
        log = second.log
        wait_for(lambda: "another data folder" in log.read_text(), "refusal of the second worker")
        assert second.process.poll() is None, log.read_text()  # it waits until the first is gone
    run.go_on()
    job = finished(yard, job_id)
    assert (job.state, job.attempt) == ("succeeded", 1)
    assert_each_once(yard, job_id, steps=40)


def test_a_broker_that_hangs_delays_launches_and_nothing_else(
    plane: ControlPlane, yard: Client
) -> None:
    running = yard.submit(spec("running", training={"steps": 60})).id
    run = plane.run(running)
    run.hold_at(2)
    broker = plane.part("broker").pid
    os.kill(broker, signal.SIGSTOP)
    try:
        waiting = [yard.submit(spec("waiting", resources={"world_size": 1})).id for _ in range(2)]
        wait_for(
            lambda: all(yard.job(job_id).state == "starting" for job_id in waiting),
            "placement of the waiting jobs",
        )
        run.go_on()
        run.hold_at(6)
        time.sleep(LEASE_SECONDS + 3)  # leases are judged, and none of them has expired
        assert yard.job(running).state == "running"
        run.go_on()
        assert finished(yard, running).state == "succeeded"
    finally:
        os.kill(broker, signal.SIGCONT)
    for job_id in (running, *waiting):
        job = finished(yard, job_id)
        assert (job.state, job.attempt) == ("succeeded", 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_that_is_cleared_again_costs_no_attempt(
    plane: ControlPlane, yard: Client
) -> None:
    node = next(yard.nodes()).name
    yard.drain(node)
    job_id = yard.submit(spec("full", training={"steps": 60})).id
    place = plane.folders.checkpoints / job_id
    with disk_of("64m", place):
        yard.undrain(node)
        run = plane.run(job_id)
        run.hold_at(2)
        filler = place / "filler"
        free = shutil.disk_usage(place).free
        filler.write_bytes(b"x" * (free - 4096))
        run.go_on()
        wait_for(
            lambda: any(event.kind == "save_failed" for event in yard.events(job_id)),
            "save that failed",
        )
        assert yard.job(job_id).state == "running"
        filler.unlink()
        job = finished(yard, job_id)
        assert (job.state, job.attempt) == ("succeeded", 1)
        assert max(checkpoint.step for checkpoint in yard.checkpoints(job_id)) == 60
    assert_each_once(yard, job_id, steps=60)
