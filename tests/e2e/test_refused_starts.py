"""Impossible jobs end with a reason before the first step; a forged launch never starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.e2e.control_plane import (
    ONE_RANK,
    ControlPlane,
    assert_each_once,
    finished,
    processes_with,
    spec,
    wait_for,
)
from trainyard.base.ids import make_id
from trainyard.client.sdk import Client
from trainyard.run.failures import REMEDIES, FailureReason

pytestmark = pytest.mark.timeout(400)
SECONDS_TO_FAIL = 60.0  # a few on an idle machine, most of them torch's import


@pytest.fixture
def drained(yard: Client) -> Iterator[str]:
    """Name of the node, which takes no job before the test allows it."""
    name = next(yard.nodes()).name
    yard.drain(name)
    yield name
    yard.undrain(name)


def test_a_place_that_takes_no_checkpoint_fails_the_job_before_its_first_step(
    plane: ControlPlane, yard: Client, drained: str
) -> None:
    job_id = yard.submit(spec("no-room", resources=ONE_RANK)).id
    place = plane.folders.checkpoints / job_id
    place.write_text("in the way")  # not even root can write below a file
    yard.undrain(drained)
    job = finished(yard, job_id)
    (attempt,) = yard.attempts(job_id)
    assert (job.state, job.progress.step) == ("failed", 0)
    failure = attempt.failure
    assert failure is not None
    assert failure.reason == "checkpoint_error"
    assert "File exists" in failure.message
    assert failure.path is not None
    assert Path(failure.path).is_relative_to(place)
    assert failure.path in failure.message
    assert failure.remedy == REMEDIES[FailureReason.CHECKPOINT_ERROR]
    assert plane.run(job_id).steps() == []
    assert attempt.ended_at is not None
    assert (attempt.ended_at - attempt.created_at).total_seconds() < SECONDS_TO_FAIL
    assert list(yard.checkpoints(job_id)) == []


def test_an_empty_corpus_fails_the_job_before_it_trains(plane: ControlPlane, yard: Client) -> None:
    (plane.folders.data / "empty.txt").touch()
    job_id = yard.submit(spec("nothing", data={"path": "data:empty.txt"})).id
    job = finished(yard, job_id)
    (attempt,) = yard.attempts(job_id)
    assert job.state == "failed"
    assert attempt.failure is not None
    assert (attempt.failure.reason, attempt.failure.rank) == ("data_error", None)
    assert "empty.txt" in attempt.failure.message
    assert attempt.started_at is None
    # Forked ranks start in parallel with the check, and end with it.
    assert plane.run(job_id).steps() == []


def test_a_message_written_by_hand_launches_nothing(plane: ControlPlane, yard: Client) -> None:
    job_id = yard.submit(spec("claimed", training={"steps": 20}, resources=ONE_RANK)).id
    run = plane.run(job_id)
    run.hold_at(2)
    (attempt,) = yard.attempts(job_id)
    mark = f"TRAINYARD_ATTEMPT_ID={attempt.id}"
    marked = processes_with(mark)
    invented = make_id(milliseconds=1, entropy=os.urandom(10))
    write_messages(plane, attempt.id, invented, "../../etc")
    assert set(processes_with(mark)) == set(marked)
    assert processes_with(f"TRAINYARD_ATTEMPT_ID={invented}") == []
    run.go_on()
    assert finished(yard, job_id).state == "succeeded"
    wait_for(lambda: not processes_with(mark), "end of the supervisor, which has reported its exit")
    write_messages(plane, attempt.id)  # nor does it start again
    assert processes_with(mark) == []
    assert [a.number for a in yard.attempts(job_id)] == [1]
    assert [path.name for path in (plane.folders.node / "runs" / job_id).iterdir()] == ["1"]
    assert_each_once(yard, job_id, steps=20)


def write_messages(plane: ControlPlane, *attempt_ids: str) -> None:
    """Write launch messages like the scheduler, and wait until the worker has handled each."""
    with Celery("forger", broker=plane.broker_url) as app:
        sent = [
            app.send_task(
                "worker.launch",
                kwargs={"attempt_id": attempt_id, "node": plane.node},
                queue=f"node.{plane.node}",
                ignore_result=True,
            ).id
            for attempt_id in attempt_ids
        ]
    log = plane.folders.log("worker")

    def seen() -> bool:
        lines = log.read_text(errors="replace").splitlines()
        over = [line for line in lines if "succeeded in" in line or "raised" in line]
        return all(any(f"[{id_}]" in line for line in over) for id_ in sent)

    wait_for(seen, "end of the tasks")
    with redis.Redis.from_url(plane.broker_url) as broker:
        assert broker.llen(f"node.{plane.node}") == 0
