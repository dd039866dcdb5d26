"""Transient failures of saves: training continues, and a later try saves its own step."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.mounts import mounted, needs_root
from tests.trainer.points import at_points
from tests.trainer.ranks import RankError, run_ranks, started_ranks
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob, train_rank
from trainer.checkpoint import save_retry
from trainer.checkpoint.save_folder import Point
from trainer.storage.io_errors import storage_errors
from trainyard.base.backoff import Backoff
from trainyard.protocol.manifest import SaveFailed
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import Phase
from trainyard.run.failures import FailureReason
from trainyard.run.records import Heartbeat
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)

MADE_ROOM = "made-room"


@dataclass(frozen=True)
class Disk(Meddling):
    """A disk that is full at the start of a save, and may be cleared after the recorded failure."""

    storage: str = ""
    full_at: str = "step-4"
    cleared: bool = False

    def after_step(self, run: Path, rank: int, step: int) -> None:
        super().after_step(run, rank, step)
        full = self.cleared and rank == 0 and (Path(self.storage) / "ballast").exists()
        if full and "save_failed" in (run / "events.jsonl").read_text():
            self.clear()

    def fill(self) -> None:
        with (Path(self.storage) / "ballast").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(2**16)):
                    pass
            except OSError:
                return

    def clear(self) -> None:
        (Path(self.storage) / "ballast").unlink(missing_ok=True)


def _train(run: str, disk: Disk) -> str:
    save_retry.BACKOFF = Backoff(first=0.0, longest=0.0, jitter=0.0)

    def spoil(point: Point, path: Path) -> None:
        if os.environ["RANK"] != "0" or point is not Point.BEGUN or path.name != disk.full_at:
            return
        if (Path(run) / MADE_ROOM).exists():
            disk.clear()
        else:
            disk.fill()

    with at_points(spoil):
        return train_rank(run, disk)


def _job(folder: Path, *, mode: str = "disabled", seconds: float = 60.0) -> SmallJob:
    job = SmallJob(folder).changed(
        folder,
        training={"steps": 8, "log_every_steps": 1},
        checkpoint={
            "interval_steps": 2,
            "async_mode": mode,
            "preflight": False,
            "give_up_after_seconds": seconds,
        },
    )
    job.storage.mkdir()
    return job


def _failures(attempt: Attempt) -> list[SaveFailed]:
    return [SaveFailed.model_validate(e.data) for e in attempt.events if e.kind == "save_failed"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    return _job(tmp_path_factory.mktemp("whole")).launch(1, TWO)


@needs_root
@pytest.mark.parametrize("mode", ["async", pytest.param("disabled", marks=pytest.mark.slow)])
def test_a_full_disk_that_is_cleared_costs_no_step(
    tmp_path: Path, whole: Attempt, mode: str
) -> None:
    job = _job(tmp_path, mode=mode)
    with mounted(job.storage):
        run = job.prepare(1, TWO)
        disk = Disk(storage=str(job.storage), cleared=True)
        run_ranks(2, _train, str(run), disk, initialize=False)
        attempt = Attempt(run)
        steps = [m.train_state.step for m in job.committed().values()]
    assert attempt.outcome.outcome == "succeeded"
    assert attempt.digests == whole.digests
    assert attempt.values("train/loss") == whole.values("train/loss"), "no bit of it changed"
    first, *later = _failures(attempt)
    assert (first.tries, first.saved_step, first.kind) == (1, 2, "interval")
    assert first.step in (4, 5, 6), "in the background, before the next save at the latest"
    assert "No space left on device" in first.message
    assert [failure.tries for failure in later] == list(range(2, 2 + len(later)))
    assert all(failure.saved_step == 2 for failure in later)
    assert 4 not in steps, "the later try saves the step of its moment"
    assert steps[0] == 2
    assert steps[-1] == 8
    assert not list(job.storage.glob("*/*/step-4"))


@needs_root
def test_the_last_save_waits_and_shows_that_it_saves(tmp_path: Path, whole: Attempt) -> None:
    job = _job(tmp_path)
    with mounted(job.storage):
        run = job.prepare(1, TWO)
        disk = Disk(storage=str(job.storage), full_at="step-8")
        with started_ranks(2, _train, str(run), disk, initialize=False) as ranks:
            seen = _wait_for_failures(run, 2)
            # The rank clears the disk itself: a save started meanwhile would fill it again.
            (run / MADE_ROOM).touch()
            ranks.results()
        attempt = Attempt(run)
        assert max(m.train_state.step for m in job.committed().values()) == 8
    assert seen == Phase.SAVING
    assert attempt.outcome.outcome == "succeeded"
    assert attempt.digests == whole.digests
    assert {(f.kind, f.step, f.saved_step) for f in _failures(attempt)} == {("final", 8, 6)}


def _wait_for_failures(run: Path, count: int) -> Phase:
    """Return the phase of the heartbeat after a number of failed saves."""
    events, deadline = run / "events.jsonl", time.monotonic() + 60
    while not events.exists() or events.read_text().count("save_failed") < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return parse_record(Heartbeat, (run / "heartbeat.json").read_text()).phase


@needs_root
def test_a_disk_that_stays_full_ends_the_attempt_when_the_time_is_up(tmp_path: Path) -> None:
    job = _job(tmp_path, seconds=0.2)
    with mounted(job.storage):
        run = job.prepare(1, TWO)
        disk = Disk(storage=str(job.storage))
        with pytest.raises(RankError):
            run_ranks(2, _train, str(run), disk, initialize=False)
        attempt = Attempt(run)
        assert [m.train_state.step for m in job.committed().values()] == [2]
    assert attempt.error.reason == FailureReason.CHECKPOINT_ERROR
    assert "No space left on device" in attempt.error.message
    assert "no save has succeeded since step 2" in attempt.error.message
    assert "checkpoint.give_up_after_seconds" in attempt.error.message


def _fail_on_rank_1(run: str, disk: Disk) -> str:
    save_retry.BACKOFF = Backoff(first=0.0, longest=0.0, jitter=0.0)

    def refuse(point: Point, path: Path) -> None:
        if os.environ["RANK"] == "1" and point is Point.FILE_MADE and path.parent.name == "step-4":
            with storage_errors("write", path):
                raise OSError(errno.EIO, "Input/output error", str(path))

    with at_points(refuse):
        return train_rank(run, disk)


def test_what_one_rank_cannot_write_is_tried_again_by_all(tmp_path: Path, whole: Attempt) -> None:
    job = _job(tmp_path, mode="async")
    run = job.prepare(1, TWO)
    run_ranks(2, _fail_on_rank_1, str(run), Disk(), initialize=False)
    attempt = Attempt(run)
    assert attempt.values("train/loss") == whole.values("train/loss")
    (failure,) = _failures(attempt)
    assert failure.message.startswith("rank 1: cannot write ")
    assert "Input/output error" in failure.message
    steps = [m.train_state.step for m in job.committed().values()]
    assert 4 not in steps
    assert steps[-1] == 8
    assert f"{JOB}.a1.step-8" == attempt.outcome.checkpoint_id
