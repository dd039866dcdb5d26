"""A storage that refuses writes fails the save on every rank, with path and cause."""

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.trainer.checkpoint.toy import JOB, Refusal, build, manager, refusal, state_at
from tests.trainer.ranks import run_ranks
from trainer.errors import RunError
from trainyard.run.checkpoints.checkpoint_names import COMMITTED
from trainyard.spec.layout import Layout

LAYOUT = Layout(dp_shard=2)
SECONDS = 30.0  # far below the timeout of a collective: no rank waits for one that failed
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def _save(
    root: Path, width: int = 7, limit_rank_1: int | None = None, uid: int | None = None
) -> tuple[Refusal, float]:
    model, optimizer = build(LAYOUT, seed=1, width=width)
    if limit_rank_1 is not None and dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_rank_1, limit_rank_1))
    if uid is not None:
        os.setuid(uid)
    saver = manager(root, LAYOUT)
    started = time.monotonic()
    with pytest.raises(RunError) as caught:
        saver.save(model, optimizer, state_at(0), kind="preflight")
    return refusal(caught.value), time.monotonic() - started


def _check(answers: list[tuple[Refusal, float]], *, cause: str, path: Path) -> None:
    assert len({answer[0][:3] for answer in answers}) == 1, "every rank gets the same error"
    for (kind, text, at_fault, _), seconds in answers:
        assert kind == "CheckpointError"
        assert cause in text
        assert str(path) in text
        assert at_fault is not None
        assert at_fault.startswith(str(path))
        assert seconds < SECONDS


def test_a_root_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    root = tmp_path / "file" / "checkpoints"
    _check(run_ranks(2, _save, root), cause="Not a directory", path=root)


def test_one_rank_that_cannot_write(tmp_path: Path) -> None:
    answers = run_ranks(2, _save, tmp_path, 7, 100)
    _check(answers, cause="rank 1: cannot write", path=tmp_path / JOB / "a1/step-0/__1_0.distcp")
    assert "File too large" in answers[0][0][1]
    assert not (tmp_path / JOB / "a1" / "step-0").exists()  # the other rank's file is gone too


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 2 MiB."""
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@needs_root
@pytest.mark.parametrize("width", [35_200, 200_000], ids=["by a little", "by far"])
def test_a_full_disk(mounted: Path, width: int) -> None:
    answers = run_ranks(2, _save, mounted, width)
    _check(answers, cause="No space left on device", path=mounted)
    assert "MiB free of 2.0 MiB" in answers[0][0][1]
    assert not list(mounted.rglob(COMMITTED))
    assert not (mounted / JOB / "a1" / "step-0").exists()


@needs_root
def test_a_read_only_mount(mounted: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    _check(run_ranks(2, _save, mounted), cause="Read-only file system", path=mounted)


def test_a_root_of_another_user() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o555)
        uid = 65_534 if os.geteuid() == 0 else None  # root may write anywhere
        _check(run_ranks(2, _save, root, 7, None, uid), cause="Permission denied", path=root)
