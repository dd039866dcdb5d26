"""`up` and `down` during training: Ctrl-C leaves the job, `up` adopts it, `down` saves it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from embedded.record import read_record
from tests.e2e.control_plane import ONE_RANK, ControlPlane, spec, wait_for
from trainyard.protocol.states import JobState

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., ControlPlane]]:
    """Start `up`, each time on the same folder and another port; at the end nothing remains."""
    with ExitStack() as started:

        def start(*arguments: str) -> ControlPlane:
            plane = ControlPlane(tmp_path, *arguments, slots=1)
            started.callback(plane.end)
            return plane

        yield start


def embedded(plane: ControlPlane, verb: str) -> str:
    """Run `up` or `down` to its end and return its output."""
    done = subprocess.run(
        plane.command(verb),
        env=plane.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_training_outlives_up_and_down_saves_it(up: Callable[..., ControlPlane]) -> None:
    first = up()
    with first.connect() as yard:
        endless = {"training": {"steps": 100_000}, "resources": ONE_RANK}
        job_id = yard.submit(spec("outliving", **endless)).id
        run = first.run(job_id)
        queued = yard.submit(spec("waiting", **endless)).id
    step = run.hold_at(3)
    supervisor = run.supervisor_pid()
    told = embedded(first, "up")
    assert "runs already" in told
    assert "/login?code=ty_login_" in told

    first.up.send_signal(signal.SIGINT)
    assert first.up.wait(120) == 0
    assert f"outliving ({job_id}, step" in first.log.read_text()
    run.go_on()
    step = run.hold_at(step + 3)
    record = read_record(first.folders.record)
    assert record is not None
    assert (record.up, record.processes, record.training) == (None, {}, (job_id,))

    second = up()
    with second.connect() as yard:
        # The step is the last one that the server has received, so any.
        line = re.compile(rf"outliving \({job_id}, step \d+ of 100,000\) was training")
        wait_for(lambda: line.search(second.log.read_text()), "line of the adopted job")
        run.go_on()
        run.wait_for_step(step + 3)
        assert yard.job(job_id).state == JobState.RUNNING
        assert run.supervisor_pid() == supervisor
        said = embedded(second, "down")
        assert "outliving: stopped at step" in said
        assert "1 queued job: for the next" in said
    assert second.up.wait(120) == 0

    third = up()
    with third.connect() as yard:
        job = yard.job(job_id)
        assert (job.state, job.attempt) == (JobState.STOPPED, 1)
        assert next(yard.checkpoints(job_id)).step == job.progress.step > step
        run = third.run(queued)
        run.hold_at(1)
    third.up.send_signal(signal.SIGINT)
    assert third.up.wait(120) == 0
    run.go_on()
    said = embedded(third, "down")  # no `up` runs that it could inform
    assert "waiting: stopped at step" in said
    assert embedded(third, "down").startswith("Nothing runs")


def run_once(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `up` to the end of the job that it submits."""
    return subprocess.run(
        [*plane.command("up", "--slots", "1", "--submit"), *arguments, "--once"],
        env=plane.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_up_submits_a_job_and_ends_with_its_status(
    up: Callable[..., ControlPlane], tmp_path: Path
) -> None:
    plane = up()
    with plane.connect():
        plane.up.send_signal(signal.SIGINT)
        assert plane.up.wait(120) == 0
    short = spec("short", training={"steps": 3}, resources=ONE_RANK)
    (tmp_path / "short.json").write_text(json.dumps(short))
    done = run_once(plane, str(tmp_path / "short.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Submitted short" in done.stderr
    assert "step 3/3" in done.stdout
    record = read_record(plane.folders.record)
    assert record is not None
    assert (record.up, record.processes, record.training) == (None, {}, ())

    (tmp_path / "wrong.json").write_text(json.dumps(short | {"resources": {"world_size": 0}}))
    refused = run_once(plane, str(tmp_path / "wrong.json"))
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "resources.world_size" in refused.stderr


def test_up_that_is_ended_before_the_job_leaves_the_job_training(
    up: Callable[..., ControlPlane], tmp_path: Path
) -> None:
    endless = spec("left", training={"steps": 100_000}, resources=ONE_RANK)
    (tmp_path / "left.json").write_text(json.dumps(endless))
    plane = up("--submit", str(tmp_path / "left.json"), "--once")
    with plane.connect() as yard:
        (job,) = wait_for(lambda: list(yard.jobs()), "job")
        run = plane.run(job.id)
        run.hold_at(1)
    plane.up.send_signal(signal.SIGINT)
    assert plane.up.wait(120) == 130
    assert f"left ({job.id}, step" in plane.log.read_text()
    run.go_on()
    assert "left: stopped at step" in embedded(plane, "down")
