"""Saves in the background, through the whole loop: the same training, and the same checkpoints."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.points import at_points
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob
from trainer.checkpoint.save_folder import Point
from trainer.loop.train import train
from trainer.metrics.run_writer import RunWriter
from trainer.run import open_run
from trainyard.run.directory import RunDirectory
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)
HSDP = Layout(dp_replicate=2, dp_shard=2)


def _run(folder: Path, layout: Layout, **checkpoint: Any) -> tuple[SmallJob, Attempt]:
    job = SmallJob(folder).changed(
        folder, training={"steps": 8}, checkpoint={"interval_steps": 3, **checkpoint}
    )
    return job, job.launch(1, layout)


def test_training_is_bit_equal_whoever_saves_how(tmp_path: Path) -> None:
    job, expected = _run(tmp_path / "plain", HSDP)
    files = {name: m.files for name, m in job.committed().items()}
    ways: dict[str, dict[str, Any]] = {
        "async": {"async_mode": "async"},
        "two": {"async_mode": "async", "writers": 2},
    }
    for name, options in ways.items():
        job, attempt = _run(tmp_path / name, HSDP, **options)
        assert attempt.values("train/loss") == expected.values("train/loss")
        assert attempt.digests == expected.digests
        committed = job.committed()
        assert committed.keys() == files.keys()
        if name == "async":  # bit-equal on storage too
            assert {key: manifest.files for key, manifest in committed.items()} == files
        else:
            assert {w.rank for m in committed.values() for w in m.writers} == {0, 2}
        told = [e.data["checkpoint_id"] for e in attempt.events if e.kind == "checkpoint_committed"]
        assert told == [f"{JOB}.a1.step-{step}" for step in (0, 3, 6, 8)]
        assert attempt.outcome.checkpoint_id == f"{JOB}.a1.step-8"
        stalls = attempt.values("checkpoint/stall_seconds")
        saves = attempt.values("checkpoint/save_seconds")
        assert stalls.keys() == saves.keys() != set()
        settled = [e.data for e in attempt.events if e.kind == "checkpoint_settled"]
        assert [data["checkpoint_id"] for data in settled] == told
        assert set(stalls.values()) <= {data["stall_seconds"] for data in settled}


def test_a_stop_and_requests_are_answered_in_the_background_too(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 30}, checkpoint={"async_mode": "async"}
    )
    meddling = Meddling(ask_after=((2, "one", '{"kind": "save"}'),), stop_after=9)
    attempt = job.launch(1, TWO, meddling)
    assert (attempt.outcome.outcome, attempt.outcome.step) == ("stopped", 10)
    assert attempt.outcome.checkpoint_id == f"{JOB}.a1.step-10"
    assert job.committed()[f"{JOB}.a1.step-10"].kind == "stop"
    (answer,) = [e.data for e in attempt.events if e.kind == "request_answered"]
    assert (answer["ok"], answer["message"]) == (True, f"saved as {JOB}.a1.step-3")


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_a_save_that_fails_ends_the_run_with_its_reason(tmp_path: Path, mode: str) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path,
        training={"steps": 200},
        checkpoint={"interval_steps": 3, "async_mode": mode},
    )
    folder = job.storage / JOB / "a1" / "step-3"
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    with pytest.raises(RankError):
        job.launch(1, TWO)
    attempt = Attempt(job.folder / "runs" / "1")
    assert attempt.error.reason == "checkpoint_error"
    assert attempt.error.path == str(folder)
    assert attempt.outcome.checkpoint_id == f"{JOB}.a1.step-0"
    assert list(job.committed()) == [f"{JOB}.a1.step-0"]


def test_by_the_clock_no_save_waits_for_the_one_before(tmp_path: Path) -> None:
    """The save of step 1 is held until step 5: training continues, then the next save starts."""
    job = SmallJob(tmp_path).changed(
        tmp_path,
        training={"steps": 8},
        checkpoint={"interval_seconds": 1e-6, "interval_steps": 0, "async_mode": "async"},
    )
    run_ranks(1, _hold_the_save_of_step_1, str(job.prepare(1, Layout())), initialize=False)
    steps = {manifest.train_state.step for manifest in job.committed().values()}
    assert {0, 1, 8} < steps <= {0, 1, 5, 6, 7, 8}


def _hold_the_save_of_step_1(run_directory: str) -> None:
    directory, released, reported = Path(run_directory), threading.Event(), threading.Event()

    def hold(point: Point, path: Path) -> None:
        if "step-1" not in path.parts:
            return
        if point is Point.PART_WRITTEN:
            released.wait(20)  # then the test fails instead of a deadlock
        elif point is Point.REPORTED:
            reported.set()

    def after_step(step: int) -> None:
        if step == 5:
            released.set()
            assert reported.wait(60), "three steps are shorter than the rest of a save may be"

    writer = RunWriter(RunDirectory(directory), rank=0, local_rank=0)
    with at_points(hold):
        train(open_run(directory, world_size=1, roots={}), writer, after_step=after_step)
