"""The fence of a program, and the checkpoint from which it resumes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.library.run.checkpoints.program import (
    JOB,
    Program,
    committed,
    own_file,
    save_on,
)
from trainyard.run.checkpoints.fence_file import (
    FencedOffError,
    FenceError,
    raised_fence_file,
    read_fence_file,
)
from trainyard.run.checkpoints.program_save import ProgramCheckpoints
from trainyard.run.checkpoints.program_storage import (
    JobStorage,
    UnusableCheckpointError,
)
from trainyard.run.checkpoints.save_messages import CheckpointSaveError, SaveMessages


def test_an_attempt_that_was_outrun_in_its_block_commits_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path, 2)

    def outrun(rank: int, folder: Path) -> None:
        own_file(rank, folder)
        with raised_fence_file(tmp_path / JOB, 2):
            pass

    errors = program.save(3, own_file, rank_0=outrun)
    assert isinstance(errors[0], FencedOffError)
    assert isinstance(errors[1], CheckpointSaveError | FencedOffError)
    assert all("attempt 1 was outrun" in str(error) for error in errors)
    assert not list(tmp_path.rglob("COMMITTED"))


def test_rank_0_waits_for_no_rank_that_the_fence_kept_out(tmp_path: Path) -> None:
    program = Program(tmp_path, 2, wait=600)
    program.ranks[0].resume_from()

    def outrun(_rank: int, _folder: Path) -> None:
        with raised_fence_file(tmp_path / JOB, 2):
            pass

    with pytest.raises(FencedOffError, match="attempt 1 was outrun"):
        save_on(program.ranks[0], 3, outrun)
    with pytest.raises(FencedOffError, match="attempt 1 was outrun"):
        save_on(program.ranks[1], 3, own_file)


def test_an_attempt_that_was_outrun_before_resumes_from_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path, 2)
    with raised_fence_file(tmp_path / JOB, 2):
        pass
    for rank in program.ranks:
        with pytest.raises(FencedOffError, match="attempt 1 was outrun"):
            rank.resume_from()


def test_other_ranks_wait_for_the_fence_of_rank_0(tmp_path: Path) -> None:
    program = Program(tmp_path, 2)
    waiting = threading.Event()
    read = SaveMessages.wait

    def noted(*arguments: Any, **options: Any) -> Any:
        waiting.set()
        return read(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(SaveMessages, "wait", noted)
        other = pool.submit(program.ranks[1].resume_from)
        assert waiting.wait(20)
        assert not other.done()
        assert program.ranks[0].resume_from() is None
        assert other.result(20) is None
    assert read_fence_file(tmp_path / JOB) == 1


def test_a_fence_that_holds_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / JOB).mkdir()
    (tmp_path / JOB / "FENCE").write_text("x")
    with pytest.raises(FenceError, match="holds 'x', no attempt number"):
        Program(tmp_path, 1).ranks[0].resume_from()


def test_the_next_attempt_removes_what_is_half_written_and_nothing_else(tmp_path: Path) -> None:
    assert Program(tmp_path, 2).save(1, own_file) == [None, None]
    half = tmp_path / JOB / "a1" / "step-2"
    half.mkdir()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "step-9").mkdir(parents=True)
    (tmp_path / JOB / "a0").symlink_to(elsewhere)
    (tmp_path / JOB / "a1" / "step-8").symlink_to(elsewhere)
    later = tmp_path / JOB / "a3" / "step-1"
    later.mkdir(parents=True)
    Program(tmp_path, 1, attempt=2).ranks[0].resume_from()
    assert sorted(path.name for path in (tmp_path / JOB / "a1").iterdir()) == ["step-1", "step-8"]
    assert later.exists()
    assert (elsewhere / "step-9").exists()


def _resumed(root: Path) -> Path | None:
    storage = JobStorage(root, JOB, 2, "job-1.a1.step-3", f"{JOB}/a1/step-3")
    return ProgramCheckpoints(storage, 0, 1, lambda _: None).resume_from()


def _rewritten(folder: Path, **changes: object) -> None:
    text = json.dumps(json.loads((folder / "manifest.json").read_text()) | changes)
    (folder / "manifest.json").write_text(text)
    marker = hashlib.sha256(text.encode()).hexdigest()
    (folder / "COMMITTED").write_text(f"sha256:{marker}")


def test_the_next_attempt_resumes_from_the_folder(tmp_path: Path) -> None:
    Program(tmp_path, 2).save(3, own_file)
    folder = tmp_path / JOB / "a1" / "step-3"
    assert _resumed(tmp_path) == folder
    assert read_fence_file(tmp_path / JOB) == 2
    storage = JobStorage(tmp_path, JOB, 2, "job-1.a1.step-3", f"{JOB}/a1/step-3")
    second = ProgramCheckpoints(storage, 0, 1, lambda _: None)
    save_on(second, 4, own_file)
    assert committed(tmp_path / JOB / "a2" / "step-4").parent == "job-1.a1.step-3"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "COMMITTED").unlink(), "is incomplete"),
        (lambda f: (f / "rank-1.pt").unlink(), "is incomplete"),
        (lambda f: (f / "rank-1.pt").write_bytes(b""), "has 0 bytes instead of 101"),
        (lambda f: (f / "manifest.json").write_bytes(b"{}"), "was changed after the commit"),
        (lambda f: _rewritten(f, checkpoint_id="x.a1.step-3"), "is another checkpoint"),
        (lambda f: _rewritten(f, files=[{}]), "is no checkpoint of a program"),
    ],
)
def test_a_parent_that_is_not_whole_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    Program(tmp_path, 2).save(3, own_file)
    damage(tmp_path / JOB / "a1" / "step-3")
    with pytest.raises(UnusableCheckpointError, match=words):
        _resumed(tmp_path)
