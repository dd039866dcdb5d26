"""The benchmark of resumes and kills, at its smallest size, on a control plane of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_resume_and_a_kill_are_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.control_plane.launch_times"]
    done = subprocess.run(
        [*command, "--rounds=1", "--kills=1"], capture_output=True, text=True, check=False
    )
    lines = {line["benchmark"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert {"resume_to_first_step", "kill_to_next_step"} == lines.keys(), done.stderr
    for line in lines.values():
        (seconds,) = line["seconds"]
        assert 0 < seconds < 120
    assert lines["kill_to_next_step"]["launches"] == {"warm": 1}
