"""A worker that another launch has started: its ranks get nothing of that launch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.conftest import Place
from tests.worker.launchers.process_launcher import PROGRAM
from tests.worker.outer_launch import OUTER

INITIALIZE = """
import json, os
import trainyard
run = trainyard.init()
run.log({"loss": 1.0}, step=1)
print(json.dumps({"rank": run.rank, "world": run.world_size, "env": dict(os.environ)}), flush=True)
"""


@pytest.mark.parametrize("launcher", ["torchrun", "command"])
def test_a_launch_around_the_worker_reaches_no_program(
    place: Place, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OUTER.items():
        monkeypatch.setenv(name, value)
    place.local = replace(place.local, allow_code=True)
    folder = Path(place.local.roots["data"], "mine")
    folder.mkdir()
    (folder / "train.py").write_text(INITIALIZE)
    program = {"command": ["train.py"], "launcher": launcher, "code": {"folder": "data:mine"}}
    attempt = place.start(launcher=PROGRAM, ranks=1, program=program)
    assert attempt.exit().outcome == "succeeded"
    found = json.loads(attempt.log(0).splitlines()[0])
    assert (found["rank"], found["world"]) == (0, 1)
    assert not OUTER.items() & found["env"].items()
    assert b"loss" in attempt.seen.files["metrics"]
