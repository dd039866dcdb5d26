"""A program saves with two processes, is stopped, and resumes with three from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.control_plane import ControlPlane, course, finished, wait_for
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState, OperationState
from trainyard.run.checkpoints.program_manifest import ProgramManifest

pytestmark = pytest.mark.timeout(400)

SCRIPT = """
import json, pathlib, sys, time
import trainyard

run = trainyard.init()
step = 0
if run.resume_from is not None:
    assert sys.argv[1:] == ["--resume", str(run.resume_from)], sys.argv
    shards = [json.loads(path.read_text()) for path in sorted(run.resume_from.glob("shard-*"))]
    assert [shard["rank"] for shard in shards] == [0, 1], shards
    step = shards[0]["step"]
last = step + 15 if run.attempt > 1 else 10**6  # the first attempt ends by the stop
while step < last:
    step += 1
    time.sleep(0.02)
    run.log({"train/loss": 1 / step}, step=step)
    run.progress(step)
    if step % 5:
        continue
    with run.checkpoint(step) as folder:
        shard = {"rank": run.rank, "step": step}
        (folder / f"shard-{run.rank}.json").write_text(json.dumps(shard))
        if run.rank == 0 and (run.directory / "stop").exists():
            (folder / "leave").touch()
    if (folder / "leave").exists():  # all ranks see the same: rank 0 wrote it before the commit
        break
"""


def folders(plane: ControlPlane, job_id: str) -> list[str]:
    """Return the job's folders of checkpoints on storage, as `a1/step-5`."""
    job = plane.folders.checkpoints / job_id
    return sorted(path.relative_to(job).as_posix() for path in job.glob("a*/step-*"))


def test_a_program_resumes_on_other_slots_from_what_it_committed(
    plane: ControlPlane, yard: Client
) -> None:
    code = Path(plane.folders.data, "program")
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    program = {
        "command": ["train.py"],
        "code": {"folder": "data:program"},
        "resume": "any_world_size",
        "resume_arguments": ["--resume", "{checkpoint}"],
    }
    job_id = yard.submit(
        {
            "name": "mine",
            "program": program,
            "checkpoint": {"keep_latest_k": 1},
            "resources": {"world_size": 2, "device": "cpu"},
        }
    ).id
    wait_for(lambda: list(yard.checkpoints(job_id)), "checkpoint")
    yard.stop(job_id, reason="other slots")
    stopped = finished(yard, job_id)
    assert stopped.state == JobState.STOPPED, stopped.reason
    # The signal of the stop may have ended rank 0 between a commit and its event.
    wait_for(lambda: not any(yard.operations(job_id=job_id, open_only=True)), "deletions, search")
    newest = next(yard.checkpoints(job_id))
    assert (newest.layout, newest.dtype, newest.on_lineage) == ("2 slots", None, True)
    first = yard.checkpoint(newest.id).manifest
    assert isinstance(first, ProgramManifest)
    assert {"shard-0.json", "shard-1.json"} <= {file.path for file in first.files}

    preview = yard.resume(job_id, world_size=3, dry_run=True).preview
    assert (preview.checkpoint_id, preview.step) == (newest.id, newest.step)
    yard.resume(job_id, world_size=3)
    done = finished(yard, job_id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2), done.reason
    second, _ = yard.attempts(job_id)
    assert (second.start_step, second.parent_checkpoint_id) == (newest.step, newest.id)

    last = next(yard.checkpoints(job_id))
    assert (last.step, last.layout, last.parent) == (newest.step + 15, "3 slots", newest.id)
    points = course(yard, job_id)
    assert points.steps["train/loss"] == list(range(1, last.step + 1))
    assert [points.attempts[s] for s in (newest.step, newest.step + 1)] == [1, 2]
    checked = yard.wait_for_operation(yard.verify(last.id).id, timeout=120)
    assert checked.state == OperationState.SUCCEEDED
    found = yard.checkpoint(last.id).verification
    assert found is not None
    assert (found.ok, found.loaded_at) == (True, None), found
    wait_for(lambda: not any(yard.operations(job_id=job_id, open_only=True)), "deletions")
    ended = [*yard.operations(job_id=job_id)]
    assert {operation.state for operation in ended} == {OperationState.SUCCEEDED}, ended
    assert [view.id for view in yard.checkpoints(job_id)] == [last.id]
    assert folders(plane, job_id) == [f"a2/step-{last.step}"]


BREAKS = """
import json, math
import trainyard

run = trainyard.init()
step = 0
if run.resume_from is not None:
    step = json.loads((run.resume_from / "state.json").read_text())["step"]
while step < 12:
    step += 1
    broken = run.attempt == 1 and step == 8
    run.log({"train/loss": math.nan if broken else 1 / step}, step=step)
    run.progress(step, total=12)
    if step % 3 == 0:
        with run.checkpoint(step) as folder:
            (folder / "state.json").write_text(json.dumps({"step": step}))
"""


def test_a_program_goes_back_to_before_the_step_that_broke_it(
    plane: ControlPlane, yard: Client
) -> None:
    code = Path(plane.folders.data, "breaks")
    code.mkdir()
    (code / "train.py").write_text(BREAKS)
    program = {
        "command": ["train.py"],
        "launcher": "command",
        "code": {"folder": "data:breaks"},
        "resume": "any_world_size",
    }
    job_id = yard.submit(
        {
            "name": "breaks",
            "program": program,
            "checkpoint": {"keep_latest_k": 0},
            "guard": {"non_finite_loss": "rollback"},
            "retry": {"backoff_seconds": 0},
            "resources": {"world_size": 1, "device": "cpu"},
        }
    ).id
    job = finished(yard, job_id)
    assert (job.state, job.progress.step) == (JobState.SUCCEEDED, 12), job.reason
    second, first = yard.attempts(job_id)
    assert first.failure is not None
    assert (first.failure.reason, first.failure.step) == ("non_finite_loss", 8)
    assert first.failure.bad_window is not None
    assert first.failure.bad_window.first_step == 8
    assert (second.start_step, second.parent_checkpoint_id) == (6, f"{job_id}.a1.step-6")
    points = course(yard, job_id)
    assert points.steps["train/loss"] == list(range(1, 13))
    assert points.attempts == {step: 1 if step <= 6 else 2 for step in range(1, 13)}
    assert [event.kind for event in yard.events(job_id)].count("rolled_back") == 1
