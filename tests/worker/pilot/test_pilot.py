"""`python -m worker pilot` and `probe`, started like by a provisioner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.worker.conftest import LONG, Place, environment, make_place, wait_for
from tests.worker.fake_server import JOIN_TOKEN, NODE_TOKEN, FakeServer
from trainyard.base.ids import make_id
from trainyard.run.directory import Phase
from worker.node.node_store import NodeStore
from worker.node.process_tree import descendants

REQUEST = make_id(milliseconds=1, entropy=bytes(10))
NAME = f"lab-{REQUEST}-1"
SECRETS = ("secret-of-another-pilot", JOIN_TOKEN)
PATIENCE = 200.0
"""Seconds for a pilot to end; other tests may keep the cores busy."""


@pytest.fixture
def place(tmp_path: Path, server: FakeServer) -> Iterator[Place]:
    made = make_place(tmp_path, server, name=NAME)
    yield made
    made.clean()


@contextmanager
def pilot_at(
    place: Place, command: str = "pilot", **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a pilot on the second machine of a request until the block ends."""
    secrets = place.folder / "secrets"
    secrets.touch(0o600)
    secrets.write_text("".join(f"{secret}\n" for secret in SECRETS))
    variables = {
        "TRAINYARD_URL": place.server.url,
        "TRAINYARD_INBOX": "server",
        "TRAINYARD_ROOTS": ",".join(f"{n}={path}" for n, path in place.local.roots.items()),
        "TRAINYARD_JOIN_TOKEN_FILE": str(secrets),
        "TRAINYARD_ADDRESS": "127.0.0.1",
        "TRAINYARD_SLOTS": "4",
        "TRAINYARD_DEVICE": "cpu",
        "TRAINYARD_PILOT_KIND": "ssh",
        "TRAINYARD_PILOT_SOURCE": "lab",
        "TRAINYARD_PILOT_REQUEST": REQUEST,
        "TRAINYARD_PILOT_INDEX": "1",
        "TRAINYARD_PILOT_INSTANCE": "boot.1.2",
        "TRAINYARD_PILOT_ENDS_AT": "1800000000",
        "TMPDIR": str(place.folder / "tmp"),
        "SLURM_JOB_ID": "7",  # as if srun had started it
    }
    (place.folder / "tmp").mkdir(exist_ok=True)
    with (place.folder / "pilot.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", command],
            env=environment(**variables | more),
            stdout=log,
            stderr=log,
            cwd=place.folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def has_ipv6_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def data_of(place: Place) -> NodeStore:
    return NodeStore(place.folder / "tmp" / f"trainyard-{REQUEST}-1")


def test_a_pilot_serves_until_its_notice_and_holds_no_secret(place: Place) -> None:
    store, password = data_of(place), "pass-of-the-proxy"
    with pilot_at(place, HTTPS_PROXY=f"http://ada:{password}@127.0.0.1:9", NO_PROXY="*") as pilot:
        wait_for(lambda: place.server.registrations, "registration")
        registration = place.server.registrations[-1]
        assert (registration.node, registration.inbox) == (NAME, "server")
        assert registration.pilot is not None
        assert (registration.pilot.index, registration.pilot.instance) == (1, "boot.1.2")
        attempt = place.attempt(place.grant(spec=LONG, ranks=1))
        attempt.run = store.run(attempt.seen.claim.attempt.job_id, 1)
        attempt.phase(Phase.TRAINING)
        assert place.server.heartbeats[-1].ends_at == 1_800_000_000

        worker, *_ = (stat.pid for stat in descendants(pilot.pid) if stat.parent == pilot.pid)
        processes = {pilot.pid, *(stat.pid for stat in descendants(pilot.pid))}
        assert processes > {worker, attempt.pid, *attempt.processes}
        assert len(processes) >= 5  # the init as well, torchrun or its wrapper, the rank
        secrets = [*SECRETS, NODE_TOKEN, attempt.seen.claim.attempt_token]
        for pid in processes:
            for name in ("environ", "cmdline"):
                content = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
                assert not [secret for secret in secrets if secret in content], (pid, name)
        for pid in attempt.processes:
            seen = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"SLURM_" not in seen
            assert b"HTTPS_PROXY=http://127.0.0.1:9\0" in seen
            assert password.encode() not in seen

        pilot.send_signal(signal.SIGUSR1)
        record = attempt.exit()
        assert record.failure is not None
        assert record.failure.reason == "preempted"
        assert pilot.poll() is None  # a notice ends no worker
        wait_for(lambda: place.server.heartbeats[-1].notice, "notice")
        pilot.send_signal(signal.SIGTERM)
        assert pilot.wait(PATIENCE) == 0
    held = {store.token, attempt.run.root / "supervisor.secret"}
    for path in (p for p in store.data_dir.rglob("*") if p.is_file() and p not in held):
        written = path.read_bytes().decode(errors="replace")
        assert not [secret for secret in secrets if secret in written], path
    log = (place.folder / "pilot.log").read_text()
    assert not [secret for secret in secrets if secret in log]


def test_a_pod_that_leaves_has_not_succeeded(place: Place) -> None:
    more = {"TRAINYARD_PILOT_KIND": "kubernetes", "JOB_COMPLETION_INDEX": "1"}
    with pilot_at(place, **more) as pilot:
        wait_for(lambda: place.server.registrations, "registration")
        pilot.send_signal(signal.SIGTERM)
        assert pilot.wait(PATIENCE) == 143, "as a success its index would get no other pod"


@pytest.mark.parametrize("unreported", [False, True])
def test_a_task_of_slurm_takes_its_data_along(place: Place, *, unreported: bool) -> None:
    store = data_of(place)
    more = {"TRAINYARD_PILOT_KIND": "slurm", "SLURM_PROCID": "1"}
    with pilot_at(place, **more) as pilot:
        wait_for(lambda: place.server.heartbeats, "heartbeat")
        assert store.token.exists()
        if unreported:  # an attempt without a supervisor, with an end that was not reported
            store.attempts.mkdir(exist_ok=True)
            (store.attempts / make_id(milliseconds=2, entropy=bytes(10))).touch()
        pilot.send_signal(signal.SIGTERM)
        assert pilot.wait(PATIENCE) == 0
    assert store.data_dir.exists() == unreported
    assert store.data_dir.parent.exists()


def test_a_pilot_that_is_refused_gives_up(place: Place) -> None:
    code = (
        "import sys, worker.init as i; i.RESTART_SECONDS = 0.01;"
        "sys.exit(i.Init([sys.executable, '-c', 'import sys; sys.exit(2)'], most_refusals=3).run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(TRAINYARD_DATA_DIR=str(place.node.data_dir)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2


def test_a_pilot_on_a_shared_file_system_names_the_setting(place: Place) -> None:
    with pilot_at(place, TMPDIR="/proc/self") as pilot:  # where nothing can be created
        assert pilot.wait(PATIENCE) == 2
    assert "TMPDIR=/proc/self" in (place.folder / "pilot.log").read_text()


def test_a_check_reports_what_a_pilot_would_find(place: Place) -> None:
    place.server.unnamed = 2  # as before the engine's report names this pilot
    with pilot_at(place, "probe", TRAINYARD_NOTICE_SECONDS="30") as pilot:
        assert pilot.wait(PATIENCE) == 0, (place.folder / "pilot.log").read_text()
    assert place.server.unnamed == 0
    (report,) = place.server.checks
    found = {result.name: result for result in report.results}
    assert {name: result.detail for name, result in found.items() if not result.passed} == {}
    assert {"route", "tls", "clock", "python", "disk", "roots", "ports", "save"} == found.keys()
    assert f"user {os.geteuid()}" in found["roots"].detail
    assert "within 30 s of a notice" in found["save"].detail
    assert place.server.registrations == []
    assert list((place.folder / "tmp").iterdir()) == []


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
def test_a_check_connects_to_an_address_of_ipv6(place: Place) -> None:
    with pilot_at(place, "probe", TRAINYARD_ADDRESS="::1") as pilot:
        assert pilot.wait(PATIENCE) == 0, (place.folder / "pilot.log").read_text()
    found = {result.name: result for result in place.server.checks[0].results}
    assert found["ports"].passed, found["ports"].detail


def test_a_check_names_what_is_wrong(place: Place) -> None:
    more = {"TRAINYARD_ROOTS": "checkpoints=/proc/nothing", "TRAINYARD_ADDRESS": "no.such.invalid"}
    with pilot_at(place, TRAINYARD_PILOT_PURPOSE="check", **more) as pilot:
        assert pilot.wait(PATIENCE) == 0
    failed = {r.name: r.detail for r in place.server.checks[0].results if not r.passed}
    assert failed.keys() == {"roots", "ports", "save"}
    assert "checkpoints=/proc/nothing" in failed["roots"]
    assert "TRAINYARD_ADDRESS=no.such.invalid has no address" in failed["ports"]
