"""An example program under the control plane: stopped on two slots, resumed exactly on three."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from embedded.record import read_record
from tests.e2e.control_plane import ControlPlane, course, finished, wait_for
from tests.examples.test_programs import PROGRAMS, attempt, in_forked_ranks, train
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState

STEPS = 300


def submitted(plane: ControlPlane, file: Path) -> str:
    """Submit a spec file by the command, which packs the code next to it; return the job's id."""
    record = read_record(plane.folders.record)
    assert record is not None
    token = plane.folders.admin_token.read_text(encoding="utf-8").strip()
    settings = (f"program.arguments.steps={STEPS}", "resources.device=cpu")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainyard", "submit", str(file), "--json"),
            *(word for setting in settings for word in ("--set", setting)),
        ],
        env=plane.environment | {"TRAINYARD_URL": record.url, "TRAINYARD_TOKEN": token},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "The code: 2 files" in done.stderr
    job_id: str = json.loads(done.stdout)["id"]
    return job_id


@pytest.mark.timeout(400)
def test_the_ddp_example_resumes_exactly_after_a_stop(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(PROGRAMS / "ddp", folder)
    job_id = submitted(plane, folder / "job.toml")
    wait_for(lambda: (yard.job(job_id).progress.step or 0) >= 20, "20 steps")
    yard.stop(job_id, reason="other slots")
    stopped = finished(yard, job_id)
    assert stopped.state == JobState.STOPPED, stopped.reason
    newest = next(yard.checkpoints(job_id))
    assert newest.step < STEPS, "it was stopped on its way"
    yard.resume(job_id, world_size=3)
    done = finished(yard, job_id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2), done.reason

    points = course(yard, job_id)
    assert points.steps["train/loss"] == points.steps["data_digest"] == list(range(1, STEPS + 1))
    assert [points.attempts[s] for s in (newest.step, newest.step + 1)] == [1, 2]
    whole = train(in_forked_ranks, "ddp", 1, attempt(tmp_path / "whole", "ddp"), STEPS)
    assert {step: points.values["data_digest", step] for step in whole.digests} == whole.digests
    losses = {step: float(points.values["train/loss", step]) for step in whole.losses}
    assert losses == pytest.approx(whole.losses, rel=0, abs=1e-5)
