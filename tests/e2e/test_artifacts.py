"""Images, histograms and files of a script, through the real parts, while the server is killed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.e2e.control_plane import ControlPlane, finished, in_state, wait_for
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState

pytestmark = pytest.mark.timeout(400)
SCRIPT = """
import pathlib, time
import torch
import trainyard

run = trainyard.init()
step = 0
while not run.should_stop():
    step += 1
    run.log_image("samples", torch.full((8, 8, 3), step % 256, dtype=torch.uint8), step=step)
    run.log_histogram("weights", torch.randn(1000), step=step)
    run.log({"train/loss": 1 / step}, step=step)
    time.sleep(0.1)
path = pathlib.Path("model.bin")
path.write_bytes(bytes(range(256)) * 20_000)
run.log_artifact(path, kind="model", step=step)
print("steps", step, flush=True)
"""


def test_a_killed_server_loses_no_artifact(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    folder = plane.folders.data / "artifacts"
    folder.mkdir()
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    program = {"command": ["train.py"], "launcher": "command", "code": {"folder": "data:artifacts"}}
    one = {"world_size": 1, "device": "cpu"}
    job_id = yard.submit({"name": "artifacts", "program": program, "resources": one}).id
    in_state(yard, job_id, JobState.RUNNING)
    wait_for(lambda: next(yard.artifacts(job_id), None), "an artifact")
    with plane.killed("server", yard):
        time.sleep(5)
    seen = len(list(yard.artifacts(job_id)))
    wait_for(lambda: len(list(yard.artifacts(job_id))) > seen + 4, "artifacts after it")
    yard.stop(job_id)
    job = finished(yard, job_id)
    assert job.state == JobState.STOPPED, job.reason
    last = yard.logs(job_id).lines[-1].text
    steps = list(range(1, int(last.removeprefix("steps ")) + 1))
    images = list(yard.artifacts(job_id, kind="image"))
    assert sorted(view.step or 0 for view in images) == steps
    assert {view.media_type for view in images} == {"image/png"}
    histograms = list(yard.artifacts(job_id, name="weights"))
    assert sorted(view.step or 0 for view in histograms) == steps
    assert {sum(view.histogram.counts) for view in histograms if view.histogram} == {1000}
    connection = yard.transport.connection
    server = {"TRAINYARD_URL": connection.url, "TRAINYARD_TOKEN": connection.token or ""}
    command = [sys.executable, "-m", "trainyard", "artifacts", job_id]
    environment = plane.environment | server
    listed = subprocess.run(
        command, check=True, env=environment, timeout=60, capture_output=True, text=True
    )
    assert "model.bin" in listed.stdout
    download = [*command, "--get", "model.bin", "--to", str(tmp_path)]
    subprocess.run(download, check=True, env=environment, timeout=60)
    assert (tmp_path / "model.bin").read_bytes() == bytes(range(256)) * 20_000
    assert [view.kind for view in yard.artifacts(job_id, name="model.bin")] == ["model"]
