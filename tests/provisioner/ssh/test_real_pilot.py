"""The real worker as a pilot of an ssh source: the processes that prove its life."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.provisioner.ssh.conftest import Network, submission
from tests.worker.conftest import LONG, Place, make_place, wait_for
from tests.worker.fake_server import JOIN_TOKEN, FakeServer
from trainyard.protocol.node_sources.messages import EngineJob, pilot_name
from trainyard.run.directory import Phase
from worker.node.node_store import NodeStore

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server of one worker."""
    made = FakeServer()
    yield made
    made.close()


@pytest.mark.slow
def test_supervisors_and_ranks_prove_that_a_pilot_without_its_init_is_not_gone(
    network: Network, tmp_path: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    network.add("a")
    source = network.source("a", python=sys.executable)
    wanted = submission(tmp_path)
    request_id = wanted.request_id
    wanted.secrets.write_text(f"{JOIN_TOKEN}\n")
    name = pilot_name("lab", request_id, 0)
    place = make_place(tmp_path, server, name=name)
    source.submit(replace(wanted, environment=variables(place, request_id)))

    def job() -> EngineJob:
        (found,) = source.status([request_id])
        return found

    try:
        wait_for(lambda: server.registrations, "registration")
        registration = server.registrations[-1]
        assert registration.node == name
        assert registration.pilot is not None
        assert registration.pilot.instance == job().nodes[0].instance
        base = network.folder / "a" / "yard"
        store = NodeStore(base / "data" / f"trainyard-{request_id}-0")
        attempt = place.attempt(place.grant(spec=LONG, ranks=1))
        attempt.run = store.run(attempt.seen.claim.attempt.job_id, 1)
        attempt.phase(Phase.TRAINING)
        assert JOIN_TOKEN not in (network.request("a", request_id) / "log").read_text()

        mark = f"PILOT_FOLDER={network.request('a', request_id)}/\0".encode()
        marks = {pid for pid in processes() if mark in environ(pid)}
        assert {attempt.pid, *attempt.processes} <= marks
        for pid in marks - {attempt.pid, *attempt.processes}:  # init and worker
            os.kill(pid, signal.SIGKILL)
        assert (job().state, job().gone) == ("running", False)
        source.cancel(request_id)  # the supervisor saves and leaves without its init
        record = attempt.exit()
        assert record.failure is not None
        assert record.failure.reason == "preempted"
        wait_for(lambda: job().gone, "end")
    finally:
        place.clean()


def variables(place: Place, request_id: str) -> dict[str, str]:
    """Settings of a pilot, in a provisioner's form."""
    roots = ",".join(f"{root}={path}" for root, path in place.local.roots.items())
    return {
        "TRAINYARD_URL": place.server.url,
        "TRAINYARD_INBOX": "server",
        "TRAINYARD_ROOTS": roots,
        "TRAINYARD_ADDRESS": "127.0.0.1",
        "TRAINYARD_SLOTS": "4",
        "TRAINYARD_DEVICE": "cpu",
        "TRAINYARD_PILOT_KIND": "ssh",
        "TRAINYARD_PILOT_SOURCE": "lab",
        "TRAINYARD_PILOT_REQUEST": request_id,
        "TRAINYARD_PILOT_PURPOSE": "nodes",
    }


def processes() -> list[int]:
    """Return all pids."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def environ(pid: int) -> bytes:
    """Return the environment of a process; empty after its end."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
