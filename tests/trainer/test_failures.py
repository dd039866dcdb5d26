"""Failures of a run: found before the first step if possible, with reason, path and cause."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import trainer.distributed
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob, train_rank
from trainer.distributed import collective_timeout
from trainer.errors import DataError, LaunchError
from trainer.loop.step import TrainStep
from trainer.loop.train import train
from trainer.metrics.memory_report import HISTORY, start_history
from trainer.metrics.run_writer import RunWriter, failure_of
from trainer.parallel.mesh import build_mesh, fsdp_mesh, set_timeouts
from trainer.run import open_run
from trainyard.protocol.record_parser import parse_record
from trainyard.run.checkpoints.fence_file import LOCK_SECONDS
from trainyard.run.directory import Phase, RunDirectory
from trainyard.run.failures import FailureReason
from trainyard.run.records import Heartbeat, Outcome
from trainyard.spec.layout import Layout
from worker.supervisor.hang import PHASE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
TWO = Layout(dp_shard=2)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def failed(job: SmallJob, layout: Layout = TWO, **launched: object) -> Attempt:
    """Launch an attempt that must fail, and return its run."""
    with pytest.raises(RankError):
        job.launch(1, layout, **launched)  # type: ignore[arg-type]
    attempt = Attempt(job.folder / "runs" / "1")
    assert attempt.outcome.outcome == "failed"
    assert attempt.outcome.failure == attempt.error
    return attempt


# ---- the preflight finds a storage that cannot take a checkpoint ---------------------------------


def check_preflight(attempt: Attempt, storage: Path, cause: str) -> None:
    """Check that the attempt failed before its first step, without a usable storage."""
    assert attempt.outcome.step == 0
    assert attempt.error.reason == FailureReason.CHECKPOINT_ERROR
    assert cause in attempt.error.message
    assert attempt.error.path is not None
    assert attempt.error.path.startswith(str(storage))
    assert attempt.error.traceback is not None
    assert not (attempt.run / "metrics.jsonl").exists(), "it failed before the first step"


def launched_by_hand(job: SmallJob, storage: Path) -> tuple[Attempt, str]:
    """Launch an attempt that must fail in its own process; return it and its log."""
    run = job.prepare(1, Layout(), storage=storage)
    done = subprocess.run(
        [sys.executable, "-m", "trainer", str(run), "--verbose"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,  # most of it is start-up
    )
    assert done.returncode == 1
    return Attempt(run), done.stderr


def test_a_checkpoint_root_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    storage = tmp_path / "file" / "deep"
    attempt = failed(SmallJob(tmp_path), Layout(), storage=storage)
    check_preflight(attempt, storage, "Not a directory")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 256 KiB: too small for a checkpoint of the small model."""
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@needs_root
def test_a_full_disk(mounted: Path, tmp_path: Path) -> None:
    attempt, log = launched_by_hand(SmallJob(tmp_path), mounted)
    check_preflight(attempt, mounted, "No space left on device")
    folder = mounted / JOB / "a1" / "step-0"
    assert f"rank 0 DEBUG folder made: {folder}\n" in log, "--verbose logs how far it got"
    assert "part written" not in log
    # After the imports, and shorter than the shortest time-out for which a save could wait.
    phases = {event.data["phase"]: event.time for event in attempt.events}
    seconds = (attempt.run / "error.json").stat().st_mtime - phases[Phase.BUILDING_CACHE.value]
    assert 0 < seconds < LOCK_SECONDS


@needs_root
def test_a_read_only_mount(mounted: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    attempt = failed(SmallJob(tmp_path), Layout(), storage=mounted)
    check_preflight(attempt, mounted, "Read-only file system")


def test_a_checkpoint_root_of_another_user() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "cache").mkdir()
        job = SmallJob(folder)
        storage = folder / "closed"
        storage.mkdir(mode=0o555)
        uid = 65_534 if os.geteuid() == 0 else None  # root may write anywhere
        attempt = failed(job, meddling=Meddling(uid=uid), storage=storage)
        assert attempt.error.reason == FailureReason.CHECKPOINT_ERROR
        assert "Permission denied" in attempt.error.message
        assert str(attempt.error.path).startswith(str(storage))
        assert not (attempt.run / "metrics.jsonl").exists()


# ---- resumes that must not happen ----------------------------------------------------------------


def resumed(job: SmallJob, text: str | None, **training: object) -> Attempt:
    """Train three steps, change the job without the trainer's knowledge, and resume."""
    short = job.changed(job.folder, training={"steps": 3}, lr_schedule={"warmup_steps": 1})
    done = short.launch(1, Layout())
    other = short.changed(
        job.folder, training={"steps": 6, **training}, lr_schedule={"total_steps": 3}
    )
    if text is not None:
        (job.folder / "data" / "text.txt").write_text(text)
    last = short.committed()[str(done.outcome.checkpoint_id)]
    with pytest.raises(RankError):
        other.launch(2, Layout(), resume=last)
    return Attempt(job.folder / "runs" / "2")


def test_a_resume_on_other_data_is_refused(tmp_path: Path) -> None:
    attempt = resumed(SmallJob(tmp_path), "something else altogether\n" * 100)
    assert attempt.error.reason == FailureReason.DATA_ERROR
    assert f"{JOB}.a1.step-3 was trained on data with digest" in attempt.error.message
    assert not (attempt.run / "metrics.jsonl").exists()


def test_a_resume_with_another_seed_is_refused(tmp_path: Path) -> None:
    attempt = resumed(SmallJob(tmp_path), None, seed=5)
    assert attempt.error.reason == FailureReason.CHECKPOINT_ERROR
    assert (
        "was written under other settings (there -> here): training.seed: 0 -> 5"
        in attempt.error.message
    )


def test_an_older_attempt_is_refused_by_the_fence(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 3}, lr_schedule={"warmup_steps": 1}
    )
    job.launch(2, Layout())
    attempt = failed(job, Layout())
    assert "2" in attempt.error.message
    assert not (attempt.run / "metrics.jsonl").exists()


def test_an_attempt_is_launched_once(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 3}, lr_schedule={"warmup_steps": 1}
    )
    run = job.launch(1, Layout()).run
    run.rename(run.with_name("former"))
    attempt = failed(job)
    assert attempt.error.reason == FailureReason.CHECKPOINT_ERROR
    assert "holds checkpoints of another launch of this attempt" in attempt.error.message
    assert set(job.committed()) == {f"{JOB}.a1.step-0", f"{JOB}.a1.step-3"}


# ---- losses that are no numbers ------------------------------------------------------------------

# The decay alone multiplies the weights by 1 - lr x weight_decay = -999 in every step.
EXPLODING = {"lr": 100.0, "weight_decay": 10.0}


def exploding(folder: Path, guard: str) -> SmallJob:
    return SmallJob(folder).changed(
        folder,
        training={"steps": 20},
        optimizer=EXPLODING,
        checkpoint={"interval_steps": 1},
        guard={"non_finite_loss": guard},
    )


def test_a_loss_that_is_no_number_stops_the_run_before_it_is_saved(tmp_path: Path) -> None:
    job = exploding(tmp_path, "stop")
    attempt = failed(job)
    error, last = attempt.error, max(attempt.lines)
    assert error.reason == FailureReason.NON_FINITE_LOSS
    assert error.message.endswith(f"at step {last}")
    assert error.step == last
    bad = [v for v in attempt.lines[last].values.values() if not math.isfinite(v)]
    assert bad, "the value that stopped it is in the chart"
    assert error.metric is not None
    assert not math.isfinite(attempt.lines[last].values[error.metric])
    assert '"NaN"' in (attempt.run / "metrics.jsonl").read_text() or math.isinf(bad[0])
    saved = {manifest.train_state.step for manifest in job.committed().values()}
    assert saved == set(range(last)), "nothing was saved after the loss went wrong"


def test_a_loss_that_is_no_number_may_be_ignored(tmp_path: Path) -> None:
    attempt = exploding(tmp_path, "ignore").launch(1, Layout())
    assert attempt.outcome.outcome == "succeeded"
    losses = attempt.values("train/loss")
    assert math.isnan(losses[20])
    assert list(losses) == list(range(1, 21))


# ---- memory that runs out ------------------------------------------------------------------------


def test_what_took_the_memory_is_told(tmp_path: Path) -> None:
    attempt = failed(SmallJob(tmp_path), meddling=Meddling(allocate_after=(3, 2**50)))
    error, use = attempt.error, attempt.error.memory
    assert (error.reason, error.step) == (FailureReason.OUT_OF_MEMORY, 3)
    assert "you tried to allocate 1125899906842624 bytes" in error.message
    largest = error.remedy.text.partition("Largest: the rest; ")[2]
    assert "activation_checkpoint.mode" in largest, "the rest is largest in a small model"
    assert use is not None
    assert use.device == "cpu"
    assert 0 < use.weights_bytes < use.optimizer_bytes
    assert use.optimizer_bytes == pytest.approx(2 * use.weights_bytes, rel=0.01)
    parts = use.weights_bytes + use.gradients_bytes + use.optimizer_bytes + use.rest_bytes
    assert parts == use.allocated_bytes < use.total_bytes


def test_a_memory_history_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HISTORY, "yes")
    with pytest.raises(LaunchError, match=r"env.MEMORY_HISTORY='yes' is no number"):
        start_history(torch.device("cpu"))


# ---- a rank that does not answer -----------------------------------------------------------------


def _impatient(run: str, meddling: Meddling) -> str:
    trainer.distributed.SHORTEST_TIMEOUT_SECONDS = 8.0
    return train_rank(run, meddling)


def test_a_collective_that_times_out_is_a_hang(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, guard={"hang_seconds": 5.0})
    run = job.prepare(1, TWO)
    with pytest.raises(RankError, match="rank 0 failed"):
        run_ranks(2, _impatient, str(run), Meddling(delay=(1, 2, 120.0)), initialize=False)
    error = Attempt(run).error
    assert (error.reason, error.rank, error.step) == (FailureReason.HANG, 0, 2)
    assert error.message.startswith("another rank did not answer")


def _timeout(group: Any) -> float:
    backend = group._get_backend(torch.device("cpu"))
    return float(backend.options._timeout.total_seconds())


def _shortest_and_longest_timeout(layout: Layout) -> tuple[float, float]:
    mesh = build_mesh(layout, "cpu")
    set_timeouts(mesh, collective_timeout(100.0))
    waits = [
        _timeout(group)
        for group in (dist.group.WORLD, *mesh.get_all_groups(), *fsdp_mesh(mesh).get_all_groups())
    ]
    return min(waits), max(waits)


def test_all_axes_wait_equally_long() -> None:
    layout = Layout(dp_replicate=2, dp_shard=1, cp=2)
    for waits in run_ranks(layout.world_size, _shortest_and_longest_timeout, layout):
        assert waits == (90.0, 90.0)


def _phase_and_timeout_in_each_step(run: str) -> list[tuple[Phase, float]]:
    attempt = open_run(Path(run), world_size=None, roots={})
    heartbeat, found = Path(attempt.directory.heartbeat), []
    step_of = TrainStep.__call__

    def noting(self: TrainStep, step: int, micro_batches: Any) -> Any:
        phase = parse_record(Heartbeat, heartbeat.read_bytes()).phase
        found.append((phase, _timeout(dist.group.WORLD)))
        return step_of(self, step, micro_batches)

    TrainStep.__call__ = noting  # type: ignore[method-assign]
    train(attempt, RunWriter(attempt.directory, rank=0, local_rank=0))
    return found


def test_compiling_is_no_hang_of_the_first_step(tmp_path: Path) -> None:
    sections: dict[str, dict[str, Any]] = {
        "compile": {"enabled": True, "backend": "aot_eager"},
        "training": {"steps": 3},
        "lr_schedule": {"warmup_steps": 0},
    }
    job = SmallJob(tmp_path).changed(tmp_path, **sections)
    run = job.prepare(1, Layout())
    (found,) = run_ranks(1, _phase_and_timeout_in_each_step, str(run), initialize=False)
    # Ranks that have compiled wait for the others slightly shorter than the supervisor for all.
    patient = 0.9 * PHASE_SECONDS[Phase.COMPILING]
    assert found == [(Phase.COMPILING, patient)] + 2 * [(Phase.TRAINING, 540.0)]


# ---- errors as records ---------------------------------------------------------------------------


def test_the_first_failing_rank_has_the_word(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    first = RunWriter(directory, rank=3, local_rank=3)
    first.step = 7
    first.fail(DataError("the file is gone", path="/data/x"))
    RunWriter(directory, rank=0, local_rank=0).fail(RuntimeError("connection closed by peer"))
    attempt = Attempt(tmp_path)
    assert (attempt.error.rank, attempt.error.step, attempt.error.path) == (3, 7, "/data/x")
    assert attempt.error.reason == FailureReason.DATA_ERROR
    assert attempt.outcome == Outcome(outcome="failed", step=7, failure=attempt.error)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["error.json", "outcome.json"]


def _allocate_a_pebibyte() -> None:
    torch.empty(2**50)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), FailureReason.OUT_OF_MEMORY),
        (MemoryError(), FailureReason.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory\nCompile with ..."), FailureReason.OUT_OF_MEMORY),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            FailureReason.OUT_OF_MEMORY,
        ),
        (
            dist.DistBackendError(
                "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.29.7\n"
                "Last error:\nCuda failure 2 'out of memory'"
            ),
            FailureReason.OUT_OF_MEMORY,
        ),
        (RuntimeError("Connection closed by peer"), FailureReason.TRAINER_ERROR),
    ],
)
def test_errors_have_a_reason(error: Exception, reason: FailureReason) -> None:
    assert failure_of(error, rank=1, step=2).reason == reason


def test_a_host_without_memory_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        _allocate_a_pebibyte()
    assert failure_of(caught.value, rank=0, step=0).reason == FailureReason.OUT_OF_MEMORY
