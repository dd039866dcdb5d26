"""An upgrade from the wheels of an earlier version while a job trains, and the way back.

The processes are those of the systemd units, from an environment for each version.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from embedded.broker import answers, choose_broker
from embedded.child import any_free_port
from tests.deploy.units import start_command
from tests.e2e.control_plane import (
    ONE_RANK,
    TEXT,
    assert_each_once,
    finished,
    spec,
    wait_for,
)
from tests.install.bare_machine import BareMachine, end, seconds_of
from tests.install.build import REPOSITORY
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState, OperationState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        os.environ.get("TRAINYARD_TEST_INSTALL") is None,
        reason="TRAINYARD_TEST_INSTALL is not set; make test-install",
    ),
]
LOOPBACK = "127.0.0.1"
STATE, NODE = "var/lib/trainyard", "var/lib/trainyard-node"
ROOTS = {"checkpoints": "/srv/checkpoints", "data": "/srv/data"}
ENDLESS = {"steps": 100_000, "seq_len": 32}
SECONDS = 300.0

Connect = Callable[[str, str], Client]
"""Function from the address of a server and a token to a connection."""


@pytest.fixture(scope="module")
def versions(machine: BareMachine) -> BareMachine:
    """The machine with an environment for each of the two versions."""
    for version in ("former", "new"):
        machine.install(version)
    return machine


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """The URL of a broker that no upgrade touches."""
    chosen = choose_broker(tmp_path)
    assert chosen.command is not None
    with subprocess.Popen(chosen.command, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: answers(chosen.url), "broker")
        yield chosen.url
        process.terminate()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open connections, which are closed with the test."""
    with ExitStack() as opened:
        yield lambda url, token: opened.enter_context(Client(url, token))


class Units:
    """The units of deploy/ on the bare machine, as systemd starts and ends them."""

    def __init__(self, machine: BareMachine, connect: Connect, *, broker: str, logs: Path) -> None:
        self.machine = machine
        self._connect = connect
        self.url = f"http://{LOOPBACK}:{any_free_port(LOOPBACK)}"
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        roots = ",".join(f"{name}={path}" for name, path in ROOTS.items())
        self._server = {
            "TRAINYARD_DATABASE_URL": f"sqlite:////{STATE}/trainyard.db",
            "TRAINYARD_BROKER_URL": broker,
            "TRAINYARD_STATE_DIR": f"/{STATE}",
            "TRAINYARD_PORT": self.url.rpartition(":")[2],
        }
        self._worker = {
            "TRAINYARD_URL": self.url,
            "TRAINYARD_BROKER_URL": broker,
            "TRAINYARD_DATA_DIR": f"/{NODE}",
            "TRAINYARD_ROOTS": roots,
            "TRAINYARD_SLOTS": "2",
            "TRAINYARD_HEARTBEAT_SECONDS": "1",
        }
        for folder in (STATE, NODE, *(path.lstrip("/") for path in ROOTS.values())):
            (machine.top / folder).mkdir(parents=True)
        (machine.top / "srv/data/text.txt").write_text(TEXT)

    def start_server(self) -> Client:
        """Migrate, start API and scheduler, and return a connection."""
        self.machine.run(*_command("server", "ExecStartPre"), variables=self._server)
        for unit in ("server", "scheduler"):
            self._start(unit, self._server)
        token = self.machine.top / STATE / "admin.token"
        wait_for(token.exists, "admin token", seconds=SECONDS)
        yard = self._connect(self.url, token.read_text().strip())
        wait_for(lambda: _responds(yard), "API", seconds=SECONDS)
        return yard

    def start_worker(self, yard: Client) -> None:
        """Start the worker, and wait for its node."""
        if not (self.machine.top / NODE / "node.token").exists():
            token = yard.create_token("bare", kind="join").secret
            assert token is not None
            self._worker["TRAINYARD_JOIN_TOKEN"] = token
        began = time.time()
        self._start("worker", self._worker)

        def beats() -> bool:
            return any(n.online and n.heartbeat_at.timestamp() > began for n in yard.nodes())

        wait_for(beats, "node", seconds=SECONDS)

    def stop(self, *units: str) -> None:
        """End the main process of units, as `KillMode=process` does."""
        for unit in units:
            assert end(self._running.pop(unit), signal.SIGTERM) == 0, unit

    def runs_from(self, version: str, module: str) -> bool:
        """Whether a process of a module runs from the environment of a version."""
        start = f"/usr/local/lib/trainyard/{version}/bin/python -m {module}"
        return any(line.startswith(start) for line in self.machine.running().values())

    def _start(self, unit: str, variables: dict[str, str]) -> None:
        log = self._logs / f"{unit}.log"
        self._running[unit] = self.machine.start(log, *_command(unit), variables=variables)


def _command(unit: str, key: str = "ExecStart") -> list[str]:
    return start_command(REPOSITORY / "deploy" / f"trainyard-{unit}.service", key)


def _responds(yard: Client) -> bool:
    try:
        yard.session()
    except TrainyardError:
        return False
    return True


def _step(yard: Client, job_id: str) -> int:
    return yard.job(job_id).progress.step


def assert_goes_on(yard: Client, job_id: str) -> None:
    """The job trains on in its first attempt."""
    before = _step(yard, job_id)
    wait_for(lambda: _step(yard, job_id) >= before + 5, "5 more steps", seconds=SECONDS)
    job = yard.job(job_id)
    assert (job.state, job.attempt) == (JobState.RUNNING, 1), job.reason


def short_spec(name: str) -> dict[str, Any]:
    """Return the spec of a job of five steps."""
    return spec(name, training={"steps": 5, "seq_len": 32}, resources=ONE_RANK)


def _problem(yard: Client) -> bool:
    """Whether a node is refused because of its protocol."""
    return any("its worker uses protocol" in each for n in yard.nodes() for each in n.problems)


def assert_trains_and_verifies(yard: Client, name: str) -> None:
    """A further job is claimed and succeeds, and so does an operation."""
    job = finished(yard, yard.submit(short_spec(name)).id)
    assert job.state == JobState.SUCCEEDED, job.reason
    assert_each_once(yard, job.id, steps=5)
    last = max(yard.checkpoints(job.id), key=lambda checkpoint: checkpoint.step)
    verified = yard.wait_for_operation(yard.verify(last.id).id, timeout=SECONDS)
    assert verified.state == OperationState.SUCCEEDED, verified


def test_a_job_outlives_an_upgrade_and_the_former_version_runs_again(
    versions: BareMachine, connect: Connect, broker: str, tmp_path: Path
) -> None:
    units = Units(versions, connect, broker=broker, logs=tmp_path)
    versions.switch("former")
    yard = units.start_server()
    units.start_worker(yard)
    job_id = yard.submit(spec("survivor", training=ENDLESS, resources=ONE_RANK)).id
    wait_for(lambda: _step(yard, job_id) >= 5, "5 steps", seconds=SECONDS)
    assert units.runs_from("former", "server api")

    versions.switch("new")
    began = time.monotonic()
    units.stop("scheduler", "server")
    versions.run("cp", "-a", f"/{STATE}", "/var/backup")
    yard = units.start_server()
    server_seconds = seconds_of(began)
    assert units.runs_from("new", "server api")
    assert_goes_on(yard, job_id)
    assert units.runs_from("former", "worker")
    waiting = yard.submit(short_spec("between")).id
    wait_for(lambda: _problem(yard), "problem that names the protocol", seconds=SECONDS)
    assert yard.job(waiting).state == JobState.QUEUED
    assert_goes_on(yard, job_id)
    began = time.monotonic()
    units.stop("worker")
    units.start_worker(yard)
    worker_seconds = seconds_of(began)
    assert units.runs_from("new", "worker")
    assert_goes_on(yard, job_id)
    assert finished(yard, waiting).state == JobState.SUCCEEDED
    assert_trains_and_verifies(yard, "after")
    yard.stop(job_id)
    job = finished(yard, job_id)
    assert (job.state, job.attempt) == (JobState.STOPPED, 1), job.reason
    assert_each_once(yard, job_id, steps=job.progress.step)

    versions.switch("former")
    units.stop("worker", "scheduler", "server")
    # No version reads the schema of a later one, or what a later one has written.
    versions.run("rm", "-r", f"/{STATE}")
    versions.run("cp", "-a", "/var/backup", f"/{STATE}")
    yard = units.start_server()
    units.start_worker(yard)
    assert units.runs_from("former", "server api")
    assert units.runs_from("former", "worker")
    assert_trains_and_verifies(yard, "again")
    yard.cancel(job_id)  # it trained when the database was saved, so the server tries it again
    finished(yard, job_id)
    figures = {
        "what": "upgrade while a job trains",
        "steps": job.progress.step,
        "server_seconds": server_seconds,
        "worker_seconds": worker_seconds,
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    units.stop("worker", "scheduler", "server")


def test_up_of_the_next_version_takes_over_jobs_that_train(
    versions: BareMachine, connect: Connect, tmp_path: Path
) -> None:
    """`up` ends by Ctrl-C, which leaves jobs training, and the next one is of another version."""
    data = versions.top / "root/.local/share/trainyard"

    def start(version: str) -> tuple[subprocess.Popen[bytes], Client]:
        program = f"/usr/local/lib/trainyard/{version}/bin/trainyard"
        log = tmp_path / f"{version}.log"
        process = versions.start(log, program, "up", "--slots", "2", variables={})
        wait_for(lambda: "Ctrl-C leaves" in log.read_text(), version, seconds=SECONDS)
        record = json.loads((data / "run.json").read_text())
        return process, connect(record["url"], (data / "state/admin.token").read_text().strip())

    first, yard = start("former")
    (data / "data/text.txt").write_text(TEXT)
    job_id = yard.submit(spec("survivor", training=ENDLESS, resources=ONE_RANK)).id
    wait_for(lambda: _step(yard, job_id) >= 5, "5 steps", seconds=SECONDS)
    first.send_signal(signal.SIGINT)
    assert first.wait(120) == 0

    second, yard = start("new")
    assert_goes_on(yard, job_id)
    yard.stop(job_id)
    job = finished(yard, job_id)
    assert (job.state, job.attempt) == (JobState.STOPPED, 1), job.reason
    assert_each_once(yard, job_id, steps=job.progress.step)
    second.send_signal(signal.SIGINT)
    assert second.wait(120) == 0
