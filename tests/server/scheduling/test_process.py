"""The scheduler's edges: leadership, the broker, the process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError
from sqlalchemy import text

from server.context import Context
from server.database.engine import Database
from server.jobs.service import submit
from server.liveness import beat
from server.scheduling.dispatch import EXPIRES_SECONDS, CelerySender
from server.scheduling.leader import LEADER_LOCK, FileLeadership, leadership, lock_of
from server.scheduling.loop import Scheduler
from server.scheduling.reconcile import Reconciler
from tests.actors import ADA
from tests.server.harness import Harness, RecordingDispatcher
from trainyard.protocol.states import JobState
from trainyard.protocol.worker_messages import LaunchMessage
from trainyard.spec.job import parse_job_spec

MESSAGE = LaunchMessage(attempt_id="attempt-1", node="gpu-01")


def test_one_leads_and_the_next_takes_over(context: Context) -> None:
    first, second = leadership(context), leadership(context)
    assert first.held()
    assert first.held()
    assert not second.held()
    first.release()
    assert second.held()
    assert not first.held()
    second.release()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_session_that_dies_leads_no_more(context: Context) -> None:
    first, second = leadership(context), leadership(context)
    assert first.held()
    holder = text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE objid = :key")
    with context.database.read() as connection:
        assert connection.execute(holder, {"key": LEADER_LOCK}).scalar_one()
    wait_until(second.held)  # the server ends a session in its own time
    assert not first.held(), "it notices, and stands by"
    second.release()
    assert first.held()
    first.release()


def test_a_message_goes_to_the_queue_of_its_node_and_expires() -> None:
    sender = CelerySender("memory://")
    sender.send(MESSAGE)
    with sender.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("node.gpu-01")
        received = queue.get(block=False)
        received.ack()
        queue.close()
    assert received.headers["task"] == "worker.launch"
    assert received.payload[1] == {"attempt_id": "attempt-1", "node": "gpu-01"}
    assert received.headers["expires"] is not None
    assert EXPIRES_SECONDS == 60
    sender.close()


def test_a_broker_that_is_away_is_an_error_at_once() -> None:
    sender = CelerySender("redis://127.0.0.1:1/0")  # no process listens on port 1
    with pytest.raises(OperationalError):
        sender.send(MESSAGE)
    sender.close()


def test_a_round_that_fails_is_followed_by_another(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(context)
    harness.add_node()
    job_id = submit(context, parse_job_spec({}), actor=ADA)
    leader = FileLeadership(context.settings.state_dir / "lock")
    scheduler = Scheduler(context, RecordingDispatcher(), leader)
    stop, rounds, tick = threading.Event(), iter(range(100)), scheduler.tick

    def failing_once() -> bool:
        if next(rounds) == 0:
            raise ConnectionError("the database is away")
        stop.set()
        return tick()

    monkeypatch.setattr(scheduler, "tick", failing_once)
    scheduler.run(stop)
    assert harness.job(job_id).state == JobState.STARTING


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_part_that_fails_keeps_no_other_from_its_work(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(context)
    harness.add_node()
    job_id = harness.submit()
    leader = FileLeadership(context.settings.state_dir / "lock")
    scheduler = Scheduler(context, harness.dispatcher, leader)

    def fail(_: object) -> None:
        raise ValueError("a row that cannot be read")

    monkeypatch.setattr(Reconciler, "run", fail)
    with pytest.raises(ExceptionGroup, match="parts of this round"):
        scheduler.tick()
    assert harness.job(job_id).state == JobState.STARTING
    leader.release()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_process_leads_and_leaves_on_sigterm(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    assert database.path is not None
    process = subprocess.Popen(
        [sys.executable, "-m", "server", "scheduler"],
        env={
            "PATH": "/usr/bin:/bin",
            "TRAINYARD_DATABASE_URL": database_url,
            "TRAINYARD_STATE_DIR": str(tmp_path / "elsewhere"),  # who leads goes by the database
            "TRAINYARD_BROKER_URL": "redis://127.0.0.1:1/0",
        },
    )
    try:
        rival = FileLeadership(lock_of(database.path))
        wait_until(lambda: not is_free(rival))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert rival.held()
        rival.release()
    finally:
        process.kill()
        process.wait()


def is_free(lock: FileLeadership) -> bool:
    taken = lock.held()
    lock.release()
    return taken


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.05)
