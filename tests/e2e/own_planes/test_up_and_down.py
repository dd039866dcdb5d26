"""`up` and `down` during training: Ctrl-C leaves the job, `up` adopts it, `down` saves it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from embedded.record import read_record
from tests.e2e.control_plane import ONE_RANK, ControlPlane, spec
from trainyard.protocol.states import JobState

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[], ControlPlane]]:
    """Start `up`, each time on the same folder and another port; at the end nothing remains."""
    with ExitStack() as started:

        def start() -> ControlPlane:
            plane = ControlPlane(tmp_path, slots=1)
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


def test_training_outlives_up_and_down_saves_it(up: Callable[[], ControlPlane]) -> None:
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
