"""A program starts on its first layout, and resumes on another one with its arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.control_plane import ControlPlane, finished, in_state, wait_for
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState

pytestmark = pytest.mark.timeout(400)

SCRIPT = """
import json, os, pathlib, sys, time
import trainyard

run = trainyard.init()
seen = {"size": int(os.environ["WORLD_SIZE"]), "words": sys.argv[1:]}
if run.rank == 0:
    pathlib.Path(f"seen-{run.attempt}.json").write_text(json.dumps(seen))
while run.attempt == 1:  # until the signal of the stop
    time.sleep(0.1)
"""


def test_a_resume_starts_the_command_with_the_arguments_of_its_layout(
    plane: ControlPlane, yard: Client
) -> None:
    code = Path(plane.folders.data, "layouts")
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    program = {
        "command": ["train.py"],
        "arguments": {"tp": 1, "lr": 0.1},
        "resume": "any_world_size",
        "layouts": [{"dp_shard": 2}, {"tp": 2, "arguments": {"tp": 2}}],
        "code": {"folder": "data:layouts"},
    }
    resources = {"world_size": 2, "device": "cpu"}
    job_id = yard.submit({"name": "mine", "program": program, "resources": resources}).id
    assert in_state(yard, job_id, JobState.RUNNING).layout == "FSDP 2"
    wait_for(lambda: [*code.glob("seen-1.json")], "command line of the first attempt")
    yard.stop(job_id, reason="another layout")
    stopped = finished(yard, job_id)
    assert stopped.state == JobState.STOPPED, stopped.reason
    reply = yard.resume(job_id, overrides={"parallelism": {"tp": 2}})
    assert reply.preview.plan.name == "TP 2"
    done = finished(yard, job_id)
    assert (done.state, done.layout) == (JobState.SUCCEEDED, "TP 2"), done.reason
    layouts = {each.number: each.layout_name for each in yard.attempts(job_id)}
    assert layouts == {1: "FSDP 2", 2: "TP 2"}
    seen = [json.loads((code / f"seen-{number}.json").read_text()) for number in (1, 2)]
    assert seen == [
        {"size": 2, "words": ["--tp", "1", "--lr", "0.1"]},
        {"size": 2, "words": ["--tp", "2", "--lr", "0.1"]},
    ]
