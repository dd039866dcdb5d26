"""Storage faults in the middle of a job: a named reason, and no older checkpoint lost."""

from __future__ import annotations

import codecs
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.mounts import mounted, needs_root
from tests.trainer.points import at_points
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob, train_rank
from trainer.checkpoint.manifest import check_contents
from trainer.checkpoint.save_folder import Point
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.run.failures import FailureReason
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)
NOBODY = 65_534
SPOILED = "step-4"  # the save before which the storage fails


def _fill(storage: Path) -> None:
    with (storage / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(2**16)):
                pass
        except OSError:
            return


def _empty(storage: Path) -> None:
    (storage / "ballast").unlink()


def _forbid(storage: Path) -> None:
    (storage / JOB / "a1").chmod(0o555)


def _allow(storage: Path) -> None:
    (storage / JOB / "a1").chmod(0o755)


def _limit(_storage: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def _close(storage: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", storage], check=True)


def _open(storage: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", storage], check=True)


def _nothing(_storage: Path) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """A fault of the storage right before a save, on one rank, and its repair."""

    happens: Callable[[Path], None]
    mended: Callable[[Path], None]
    said: str
    """Part of the reason."""
    mode: str = "disabled"
    rank: int = 0
    mounted: bool = False


FAULTS = {
    "full": Fault(_fill, _empty, "No space left on device", mode="async", mounted=True),
    "read-only": Fault(_close, _open, "Read-only file system", mounted=True),
    "forbidden": Fault(_forbid, _allow, "Permission denied", mode="async"),
    "limited": Fault(_limit, _nothing, "File too large", rank=1),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user may enter; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "cache").mkdir()
        yield Path(name)


def _job(folder: Path, *, mode: str) -> SmallJob:
    return SmallJob(folder).changed(
        folder,
        training={"steps": 8, "log_every_steps": 1},
        checkpoint={"interval_steps": 2, "async_mode": mode, "give_up_after_seconds": 0},
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    return _job(tmp_path_factory.mktemp("whole"), mode="disabled").launch(1, TWO)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("full", marks=needs_root),
        "forbidden",
        pytest.param("read-only", marks=[needs_root, pytest.mark.slow]),
        pytest.param("limited", marks=pytest.mark.slow),
    ],
)
def test_a_storage_that_fails_between_two_saves(folder: Path, whole: Attempt, name: str) -> None:
    fault = FAULTS[name]
    job = _job(folder, mode=fault.mode)
    job.storage.mkdir(mode=0o777)
    job.storage.chmod(0o777)
    with ExitStack() as stack:
        if fault.mounted:
            stack.enter_context(mounted(job.storage))
        uid = NOBODY if name == "forbidden" and os.geteuid() == 0 else None
        run = job.prepare(1, TWO)
        with pytest.raises(RankError):
            run_ranks(2, _train, str(run), str(job.storage), name, uid, initialize=False)
        first = Attempt(run)
        assert first.error.reason == FailureReason.CHECKPOINT_ERROR
        assert fault.said in first.error.message
        assert str(first.error.path).startswith(str(job.storage / JOB))

        _check_intact(job)
        assert not (job.storage / JOB / "a1" / SPOILED).exists(), "a failed save frees its space"

        fault.mended(job.storage)
        second = job.launch(2, TWO, resume=job.committed()[f"{JOB}.a1.step-2"])
    assert second.outcome.outcome == "succeeded"
    for attempt in (first, second):
        assert attempt.digests.items() <= whole.digests.items()
        assert attempt.values("train/loss").items() <= whole.values("train/loss").items()
    assert set(second.lines) == set(range(3, 9))


def _train(run: str, storage: str, name: str, uid: int | None) -> str:
    fault, rank = FAULTS[name], int(os.environ["RANK"])
    codecs.lookup("ascii")  # its new user may not read the folder of the interpreter

    def spoil(point: Point, path: Path) -> None:
        if rank == fault.rank and point is Point.BEGUN and path.name == SPOILED:
            fault.happens(Path(storage))

    with at_points(spoil):
        return train_rank(run, Meddling(uid=uid))


def _check_intact(job: SmallJob) -> None:
    """Check that exactly the checkpoints before the fault are listed, and that they are whole."""
    committed = job.committed()
    assert list(committed) == [f"{JOB}.a1.step-0", f"{JOB}.a1.step-2"]
    for manifest in committed.values():
        path = checkpoint_path(JOB, manifest.attempt, manifest.train_state.step)
        check_contents(job.storage / path, manifest.files)


def _flip_a_bit(folder: Path) -> None:
    path = folder / "__1_0.distcp"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_loads(
    tmp_path: Path, whole: Attempt
) -> None:
    job = _job(tmp_path, mode="async")
    job.launch(1, TWO, Meddling(stop_after=5))
    committed = job.committed()
    newest, before = committed[f"{JOB}.a1.step-6"], committed[f"{JOB}.a1.step-4"]
    damaged = job.storage / checkpoint_path(JOB, 1, 6)
    _flip_a_bit(damaged)
    with pytest.raises(RankError):
        job.launch(2, TWO, resume=newest)
    refused = Attempt(job.folder / "runs" / "2")
    assert refused.error.reason == FailureReason.CHECKPOINT_ERROR
    assert "is damaged: its checksum is" in refused.error.message
    assert refused.error.path == str(damaged / "__1_0.distcp")
    assert not (refused.run / "metrics.jsonl").exists(), "not a step is made of it"
    third = job.launch(3, TWO, resume=before)
    assert set(third.lines) == {5, 6, 7, 8}
    assert third.values("train/loss").items() <= whole.values("train/loss").items()
