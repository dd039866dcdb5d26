"""The example programs under the control plane: stopped on two slots, resumed exactly on three."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from embedded.record import read_record
from tests.e2e.control_plane import ControlPlane, Run, course, finished
from tests.examples.test_programs import (
    EXACT,
    NO_TITAN,
    PROGRAMS,
    ROOT,
    TITAN,
    attempt,
    document,
    in_forked_ranks,
    train,
    under_torchrun,
)
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState

logger = logging.getLogger(__name__)
CHANGES: dict[str, dict[str, int]] = {
    "ddp": {"steps": 300},  # of milliseconds each
    "classifier": {"batch": 44},  # does not divide the data: none of these steps ends an epoch
}
"""Arguments that replace those of the spec file."""
SAMPLES = {"classifier": 1500}
"""Samples of an epoch, if they differ from most examples."""
MAX_SAMPLES = 100
TRAINED = 16
"""Fewest steps before the stop."""
TITAN_TRAINED = 4
"""Fewest steps of torchtitan before the stop."""


def submitted(plane: ControlPlane, file: Path, **arguments: Any) -> str:
    """Submit a spec file with the command, which packs the code next to it; return the job's id."""
    record = read_record(plane.folders.record)
    assert record is not None
    token = plane.folders.admin_token.read_text(encoding="utf-8").strip()
    settings = ["resources.device=cpu"]
    settings += [f"program.arguments.{name}={value}" for name, value in arguments.items()]
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
    if "local" in document(file.parent.name)["program"]["code"]:
        assert "The code: 2 files" in done.stderr
    job_id: str = json.loads(done.stdout)["id"]
    return job_id


def stopped_after(step: int, plane: ControlPlane, *, yard: Client, job_id: str) -> int:
    """Stop a job in its first attempt after a step; return the step of its newest checkpoint."""
    run = plane.run(job_id)
    run.hold_at(step)
    stop_held(run, yard, job_id)
    return next(yard.checkpoints(job_id)).step


def stop_held(run: Run, yard: Client, job_id: str) -> None:
    """Stop a job with paused ranks, so that it does not end before the order arrives."""
    yard.stop(job_id, reason="other slots")
    run.go_on_to_stop()
    stopped = finished(yard, job_id)
    assert stopped.state == JobState.STOPPED, stopped.reason


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [name if name == "ddp" else pytest.param(name, marks=pytest.mark.slow) for name in EXACT],
)
def test_an_example_resumes_exactly_after_a_stop(
    plane: ControlPlane, yard: Client, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    shutil.copytree(PROGRAMS / name, folder)
    arguments = document(name)["program"]["arguments"] | {"workers": 2, **CHANGES.get(name, {})}
    steps, batch = arguments["steps"], arguments["batch"]
    assert arguments["accumulation"] == 3
    job_id = submitted(plane, folder / "job.toml", **arguments)
    newest = stopped_after(TRAINED, plane, yard=yard, job_id=job_id)
    assert newest < steps, "it was stopped on its way"
    assert newest * batch % SAMPLES.get(name, MAX_SAMPLES), "it was stopped in mid-epoch"
    yard.resume(job_id, world_size=3)
    done = finished(yard, job_id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2), done.reason

    points = course(yard, job_id)
    assert points.steps["train/loss"] == points.steps["data_digest"] == list(range(1, steps + 1))
    assert [points.attempts[step] for step in (newest, newest + 1)] == [1, 2]
    launch = in_forked_ranks if name == "ddp" else under_torchrun
    whole = train(
        launch, name, ranks=1, run=attempt(tmp_path / "whole", name), steps=steps, batch=batch
    )
    assert {step: points.values["data_digest", step] for step in whole.digests} == whole.digests
    losses = {step: float(points.values["train/loss", step]) for step in whole.losses}
    assert losses == pytest.approx(whole.losses, rel=0, abs=1e-5)
    most = max(abs(losses[step] - whole.losses[step]) for step in losses)
    logger.info(
        "%s: resumed after step %d of %d; losses differ by %.1e at most", name, newest, steps, most
    )


def titan_folder(plane: ControlPlane) -> Path:
    """Copy torchtitan's example below the root `data`, as its spec file requires."""
    data = plane.folders.data
    folder = shutil.copytree(PROGRAMS / "torchtitan", data / "torchtitan")
    subprocess.run([sys.executable, "prepare.py"], cwd=folder, check=True)
    assert TITAN is not None
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([TITAN, "-c", where], text=True).strip()
    # An environment of the root with the packages of the other one, without a copy of 1.4 GB.
    venv.create(data / "titan", symlinks=True)
    (own,) = (data / "titan" / "lib").glob("python*/site-packages")
    (own / "torchtitan.pth").write_text(f"{packages}\n{ROOT / 'library'}\n")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(TITAN is None, reason=NO_TITAN)
def test_torchtitan_resumes_exactly_after_a_stop(plane: ControlPlane, yard: Client) -> None:
    folder = titan_folder(plane)
    steps = document("torchtitan")["program"]["steps"]
    job_id = submitted(plane, folder / "job.toml")
    newest = stopped_after(TITAN_TRAINED, plane, yard=yard, job_id=job_id)
    assert newest < steps, "it was stopped on its way"
    yard.resume(job_id, world_size=3)
    done = finished(yard, job_id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2), done.reason
    points = course(yard, job_id)
    assert points.steps["data_digest"] == list(range(1, steps + 1))

    whole_id = submitted(plane, folder / "job.toml")
    assert finished(yard, whole_id).state == JobState.SUCCEEDED
    whole = course(yard, whole_id)
    for step in range(1, steps + 1):
        assert points.values["data_digest", step] == whole.values["data_digest", step]
        ours, theirs = (float(each.values["train/loss", step]) for each in (points, whole))
        assert ours == pytest.approx(theirs, rel=0, abs=1e-5)
