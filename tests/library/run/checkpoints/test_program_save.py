"""A checkpoint of a program: committed by all ranks together, or by none."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.library.run.checkpoints.program import (
    JOB,
    Program,
    committed,
    own_file,
    refused,
    save_on,
)
from trainyard.run.checkpoints.fence_file import (
    raised_fence_file,
)
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.checkpoints.program_save import ProgramCheckpoints
from trainyard.run.checkpoints.program_storage import (
    JobStorage,
    LocalStorage,
)
from trainyard.run.checkpoints.save_messages import CheckpointSaveError


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_file_of_every_rank_is_committed(tmp_path: Path, ranks: int) -> None:
    program = Program(tmp_path, ranks)

    def body(rank: int, folder: Path) -> None:
        own_file(rank, folder)
        (folder / "shards" / str(rank)).mkdir(parents=True)
        (folder / "shards" / str(rank) / "model.safetensors").write_bytes(b"x" * rank)

    assert program.save(7, body) == [None] * ranks
    folder = tmp_path / JOB / "a1" / "step-7"
    manifest = committed(folder)
    assert [file.path for file in manifest.files] == [
        *(f"rank-{rank}.pt" for rank in range(ranks)),
        *(f"shards/{rank}/model.safetensors" for rank in range(ranks)),
    ]
    assert manifest.size == sum(100 + 2 * rank for rank in range(ranks))
    assert (manifest.checkpoint_id, manifest.job_id, manifest.attempt, manifest.step) == (
        "job-1.a1.step-7",
        JOB,
        1,
        7,
    )
    assert (manifest.world_size, manifest.kind, manifest.parent) == (ranks, "interval", None)
    assert program.reported == [manifest]
    assert not list(tmp_path.rglob("*.part"))


def test_a_file_that_one_rank_writes_is_enough(tmp_path: Path) -> None:
    program = Program(tmp_path, 3)

    def body(rank: int, folder: Path) -> None:
        if rank == 0:
            (folder / "model.pt").write_bytes(b"weights")

    assert program.save(1, body) == [None] * 3
    assert [file.path for file in program.reported[0].files] == ["model.pt"]


def test_saves_follow_each_other_and_their_messages_go(tmp_path: Path) -> None:
    program = Program(tmp_path, 2)
    for step in (1, 2, 3):
        assert program.save(step, own_file) == [None, None]
    names = sorted(path.name for path in (tmp_path / JOB / "a1").iterdir())
    assert names == [".save-2", "step-1", "step-2", "step-3"]


def test_a_step_that_is_committed_stays_as_it_was(tmp_path: Path) -> None:
    program = Program(tmp_path, 2)
    assert program.save(4, own_file) == [None, None]
    before = committed(tmp_path / JOB / "a1" / "step-4")

    def other(rank: int, folder: Path) -> None:
        (folder / f"other-{rank}").write_bytes(b"other")

    assert program.save(4, other) == [None, None]
    assert committed(tmp_path / JOB / "a1" / "step-4") == before
    assert program.reported == [before]
    assert not list(tmp_path.rglob("other-*"))
    assert program.save(5, own_file) == [None, None]


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_the_block_commits_nothing_and_reaches_every_rank(
    tmp_path: Path, failing: int
) -> None:
    program = Program(tmp_path, 2)
    errors = program.save(3, own_file, **{f"rank_{failing}": refused(errno.ENOSPC)})
    own = errors[failing]
    assert isinstance(own, OSError)
    assert own.errno == errno.ENOSPC
    assert isinstance(errors[1 - failing], CheckpointSaveError)
    assert "No space left on device" in str(errors[1 - failing])
    assert not list(tmp_path.rglob("COMMITTED"))
    assert program.reported == []
    # The next save removes what the failed one left, and commits.
    assert program.save(3, own_file) == [None, None]
    assert len(committed(tmp_path / JOB / "a1" / "step-3").files) == 2


def test_a_single_process_leaves_no_folder_after_an_error(tmp_path: Path) -> None:
    (error,) = Program(tmp_path, 1).save(3, refused(errno.EIO))
    assert isinstance(error, OSError)
    assert list((tmp_path / JOB / "a1").iterdir()) == []


def test_a_full_disk_at_the_commit_reaches_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JobStorage, "commit", full)
    program = Program(tmp_path, 2)
    errors = program.save(3, own_file)
    assert all(isinstance(error, CheckpointSaveError) for error in errors)
    assert all("No space left on device" in str(error) for error in errors)
    assert not (tmp_path / JOB / "a1" / "step-3").exists()


def test_a_rank_that_never_comes_ends_the_save(tmp_path: Path) -> None:
    program = Program(tmp_path, 3, wait=0.2)
    del program.ranks[1]
    errors = program.save(3, own_file)
    assert all(isinstance(error, CheckpointSaveError) for error in errors)
    assert "ranks 1 are not through the block of step 3" in str(errors[0])
    assert str(errors[0]) in str(errors[1])
    assert not list(tmp_path.rglob("COMMITTED"))


def test_without_rank_0_the_others_give_up(tmp_path: Path) -> None:
    program = Program(tmp_path, 2, wait=0.1)
    with raised_fence_file(tmp_path / JOB, 1):
        pass
    del program.ranks[0]
    (error,) = program.save(3, own_file)
    assert "rank 0 has not begun the save" in str(error)


def test_ranks_that_save_different_steps_are_refused(tmp_path: Path) -> None:
    first, second = Program(tmp_path, 2), Program(tmp_path, 2)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(save_on, first.ranks[0], 3, own_file)
        other = pool.submit(save_on, second.ranks[1], 4, own_file)
    for future in (one, other):
        words = "rank 1: it saves step 4, and rank 0 step 3; legal: the same step"
        assert words in str(future.exception())


def test_an_empty_block_is_refused(tmp_path: Path) -> None:
    errors = Program(tmp_path, 2).save(3, lambda _rank, _folder: None)
    assert all("no rank wrote a file" in str(error) for error in errors)


@pytest.mark.parametrize(("step", "kind"), [(-1, "interval"), (10**9 + 1, "interval"), (1, "A b")])
def test_a_step_or_kind_that_no_checkpoint_has_is_refused(
    tmp_path: Path, step: int, kind: str
) -> None:
    (rank,) = Program(tmp_path, 1).ranks
    with pytest.raises(ValueError, match="legal: "), rank.save(step, kind=kind):
        pytest.fail("the block runs")


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_a_job_a_plain_folder_is_renamed_at_the_end(tmp_path: Path, ranks: int) -> None:
    storage = LocalStorage(tmp_path / "checkpoints", "77-")
    reported: list[ProgramManifest] = []
    program = Program(tmp_path, 1)
    program.ranks = [
        ProgramCheckpoints(storage, rank, ranks, reported.append, 20.0) for rank in range(ranks)
    ]
    assert [rank.resume_from() for rank in program.ranks] == [None] * ranks
    for _ in range(2):  # the second one replaces the first
        assert program.save(5, own_file) == [None] * ranks
    found = tmp_path / "checkpoints" / "step-5"
    assert sorted(path.name for path in found.iterdir()) == [f"rank-{r}.pt" for r in range(ranks)]
    assert reported == []
    errors = program.save(6, refused(errno.EIO))
    assert all(isinstance(error, OSError | CheckpointSaveError) for error in errors)
    assert not (tmp_path / "checkpoints" / "step-6").exists()
