"""Secrets of real jobs: nothing that the jobs leave has a value, and no other process has one."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.control_plane import (
    ONE_RANK,
    ControlPlane,
    finished,
    in_state,
    processes_with,
    spec,
    wait_for,
)
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState
from worker.node.process_tree import NODE_MARKER

pytestmark = pytest.mark.timeout(400)
VALUE = "tok-5f1c9e77-a4b2-leaked"
ENV = {"API_TOKEN": {"secret": "api"}}
PRINTS = """
import base64, os, sys, time
import trainyard.wandb as wandb

token = os.environ["API_TOKEN"]
run = wandb.init(config={"token": token, "settings": {"url": "https://u:" + token + "@host"}})
run.log({"loss": 0.5, token: 1.0})
run.summary["note"] = "with " + token
print("the token is", token, flush=True)
print("header", base64.b64encode(("user:" + token).encode()).decode(), flush=True)
for part in (token[:9], token[9:], " in two parts\\n"):
    os.write(2, part.encode())
    time.sleep(0.7)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
raise ValueError("refused: " + token)
"""


@pytest.fixture
def stored(yard: Client) -> None:
    """A secret of the default project."""
    assert yard.set_secret("api", VALUE, project="default").warning is None


def holders_of(text: str) -> dict[int, str]:
    """Return the files below /proc of each process that have a text."""
    found = {}
    for folder in Path("/proc").iterdir():
        for name in ("environ", "cmdline") if folder.name.isdigit() else ():
            with contextlib.suppress(OSError):
                if text.encode() in (folder / name).read_bytes():
                    found[int(folder.name)] = name
    return found


def files_with(root: Path, text: str) -> list[Path]:
    """Return the files below a folder that have a text; sockets and pipes have none."""
    found = []
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):  # a temporary file
                if text.encode() in path.read_bytes():
                    found.append(path)
    return found


@pytest.mark.usefixtures("stored")
def test_a_program_that_prints_its_secret_leaves_no_value(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    program: dict[str, Any] = {
        "command": [sys.executable, "-c", PRINTS, str(go)],
        "launcher": "command",
    }
    document = {
        "name": "prints",
        "program": program,
        "resources": ONE_RANK,
        "retry": {"max_retries": 0},
        "env": ENV,
    }
    job_id = yard.submit(document).id
    in_state(yard, job_id, JobState.RUNNING)
    wait_for(lambda: "two parts" in text_of(yard, job_id), "output")
    ours = set(processes_with(f"{NODE_MARKER}={plane.node}"))
    holders = holders_of(VALUE)
    assert holders, "the rank has it"
    assert {pid: file for pid, file in holders.items() if pid not in ours} == {}
    assert set(holders.values()) == {"environ"}
    go.touch()
    job = finished(yard, job_id)
    assert job.state == JobState.FAILED
    stars = "*" * len(VALUE)
    output = text_of(yard, job_id)
    assert f"the token is {stars}" in output
    assert f"{stars} in two parts" in output
    assert f"ValueError: refused: {stars}" in output
    assert stars in (job.reason or "") + str([*yard.attempts(job_id)])
    assert job.facts is not None
    assert job.facts.summary["note"] == f"with {stars}"
    assert list(yard.search_logs(job_id, VALUE)) == []
    everything = [job, *yard.attempts(job_id), *yard.events(job_id)]
    assert not [each for each in everything if VALUE in each.model_dump_json()]
    delivered = [each for each in yard.events(job_id) if each.kind == "secrets_delivered"]
    assert [each.message.partition(" got ")[2] for each in delivered] == [
        "secrets: API_TOKEN ('api', version 1)"
    ]
    run = plane.folders.node / "runs" / job_id / "1"
    wait_for(lambda: not (run / "secrets.json").exists(), "removal of the values")
    assert files_with(plane.folders.root, VALUE) == []
    assert files_with(plane.folders.root, VALUE[9:]) == []


@pytest.mark.usefixtures("stored")
def test_checkpoints_of_the_trainer_have_the_reference_at_most(
    plane: ControlPlane, yard: Client
) -> None:
    document = spec("trains") | {"env": ENV, "resources": ONE_RANK}
    job_id = yard.submit(document).id
    assert finished(yard, job_id).state == JobState.SUCCEEDED
    assert list(yard.checkpoints(job_id))
    run = plane.folders.node / "runs" / job_id / "1"
    assert '"secret": "api"' in (run / "spec.json").read_text()
    wait_for(lambda: not (run / "secrets.json").exists(), "removal of the values")
    assert files_with(plane.folders.root, VALUE) == []


def text_of(yard: Client, job_id: str) -> str:
    return "\n".join(line.text for line in yard.logs(job_id).lines)
