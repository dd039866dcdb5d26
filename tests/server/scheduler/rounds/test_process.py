"""The scheduler's process: failed rounds, the broker."""

from __future__ import annotations

import gc
import threading

import pytest
from kombu.exceptions import OperationalError

from server.app.periodic_work import periodic_work
from server.core.context import Context
from server.core.liveness import beat
from server.core.periodic import EACH_ROUND, PeriodicTask, PeriodicWork
from server.scheduler.rounds.dispatch import EXPIRES_SECONDS, CelerySender, Dispatcher
from server.scheduler.rounds.leader import Leader
from server.scheduler.rounds.loop import TICK_SECONDS, Scheduler, collect_seldom
from server.scheduler.rounds.reconcile import Reconciler
from tests.actors import ADA
from tests.server.harness import Harness, RecordingDispatcher
from tests.server.submit import submit
from trainyard.protocol.states import JobState
from trainyard.protocol.worker_messages import LaunchMessage
from trainyard.spec.job import parse_job_spec

MESSAGE = LaunchMessage(attempt_id="attempt-1", node="gpu-01")


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
    job_id = submit(context, parse_job_spec({}), actor=ADA).id
    leader = Leader(context.database)
    scheduler = Scheduler(context, RecordingDispatcher(), leader=leader, work_of=periodic_work)
    stop, rounds, tick = threading.Event(), iter(range(100)), scheduler.tick

    def failing_once() -> bool:
        if next(rounds) == 0:
            raise ConnectionError("the database is away")
        stop.set()
        return tick()

    monkeypatch.setattr(scheduler, "tick", failing_once)
    scheduler.run(stop)
    assert harness.job(job_id).state == JobState.STARTING


class FewRounds(threading.Event):
    """Ends a scheduler after six rounds, and keeps the pauses before them."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Keep a pause, and return whether the rounds are over."""
        self.pauses.append(timeout)
        return len(self.pauses) > 6


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_task_that_fails_delays_no_round(context: Context) -> None:
    def fails() -> None:
        raise ValueError("a row that cannot be read")

    def work_of(context: Context, dispatcher: Dispatcher) -> PeriodicWork:
        task = PeriodicTask("fails", EACH_ROUND, 0.1, "")
        return PeriodicWork(context.clock.monotonic, {task: fails})

    leader, stop = Leader(context.database), FewRounds()
    Scheduler(context, RecordingDispatcher(), leader=leader, work_of=work_of).run(stop)
    assert set(stop.pauses) == {TICK_SECONDS}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_part_that_fails_keeps_no_other_from_its_work(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(context)
    harness.add_node()
    job_id = harness.submit()
    leader = Leader(context.database)
    scheduler = Scheduler(context, harness.dispatcher, leader=leader, work_of=periodic_work)

    def fail(_: object) -> None:
        raise ValueError("a row that cannot be read")

    monkeypatch.setattr(Reconciler, "run", fail)
    with pytest.raises(ExceptionGroup, match="periodic tasks failed"):
        scheduler.tick()
    assert harness.job(job_id).state == JobState.STARTING
    leader.release()


def test_the_objects_of_a_large_round_are_not_searched_for_garbage() -> None:
    thresholds, collections = gc.get_threshold(), list[str]()

    def note(phase: str, _info: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(note)
    try:
        collect_seldom()
        collections.clear()
        kept: list[dict[int, list[int]]] = [{number: []} for number in range(40_000)]
        assert (len(kept), collections) == (40_000, [])
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
