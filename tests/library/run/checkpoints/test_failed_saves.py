"""A save that fails on one rank fails on every rank, and the next one is made."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.library.run.checkpoints.program import JOB, Program, committed, own_file, save_on
from trainyard.run.checkpoints.program_save import WAIT_SECONDS, ProgramCheckpoints
from trainyard.run.checkpoints.program_storage import MESSAGES_SECONDS, JobStorage, LocalStorage
from trainyard.run.checkpoints.save_messages import CheckpointSaveError, SaveMessages


def failing_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, when: Callable[..., bool]
) -> None:
    """Make a method fail like storage at its first call with matching arguments."""
    method = getattr(owner, name)
    failed: list[bool] = []

    def call(*arguments: Any, **options: Any) -> Any:
        if not failed and when(*arguments):
            failed.append(True)
            raise OSError(errno.ESTALE, "Stale file handle")
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(JobStorage, "fence_is_raised"), (JobStorage, "raise_fence"), (JobStorage, "create")],
)
def test_a_storage_error_at_the_start_fails_one_save_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    program = Program(tmp_path, 3)
    failing_once(monkeypatch, owner, name, when=lambda *_: True)
    errors = program.save(1, own_file)
    assert [type(error) for error in errors] == [CheckpointSaveError] * 3
    assert all("Stale file handle" in str(error) for error in errors)
    assert program.save(2, own_file) == [None] * 3
    assert committed(tmp_path / JOB / "a1" / "step-2").world_size == 3


def test_a_failure_that_rank_0_cannot_post_ends_with_its_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path, 2)
    for rank in program.ranks:
        rank.left_seconds = 0.1
    failing_once(monkeypatch, JobStorage, "create", when=lambda *_: True)
    failing_once(monkeypatch, SaveMessages, "post", when=lambda _, name, __: name == "ended")
    with pytest.raises(CheckpointSaveError):
        save_on(program.ranks[0], 1, own_file)
    errors = Program.save(_saves_twice(program), 2, own_file)
    assert errors == [None, None]
    assert committed(tmp_path / JOB / "a1" / "step-2").world_size == 2


def _saves_twice(program: Program) -> Program:
    """Make rank 1 save the step that rank 0 has left first."""
    save = program.ranks[1].save

    def twice(step: int) -> Any:
        with pytest.raises(CheckpointSaveError, match="rank 0 failed in this save"), save(1):
            raise AssertionError("it has begun")
        return save(step)

    program.ranks[1].save = twice  # type: ignore[method-assign,assignment]
    return program


def local(folder: Path) -> ProgramCheckpoints:
    """Return the checkpoints of a script that runs alone, without a job."""
    return ProgramCheckpoints(LocalStorage(folder, "7-"), 0, 1, lambda _: None)


def test_a_step_is_saved_again_after_a_kill_at_any_moment(
    tmp_path: Path,
) -> None:
    for content in ("first", "second", "third"):
        with local(tmp_path).save(5) as folder:
            (folder / "model").write_text(content)
        for left in (".step-5.old", ".step-5.gone", ".step-5.partial"):
            (tmp_path / left).mkdir()
            (tmp_path / left / "model").write_text("of a run that was killed")
    assert (tmp_path / "step-5" / "model").read_text() == "third"


@pytest.mark.parametrize("begins", ["saves", "reads"])
def test_a_save_that_was_killed_between_its_two_names_loses_no_checkpoint(
    begins: str, tmp_path: Path
) -> None:
    with local(tmp_path).save(5) as folder:
        (folder / "model").write_text("whole")
    (tmp_path / "step-5").rename(tmp_path / ".step-5.old")
    if begins == "saves":
        with local(tmp_path).save(6) as folder:
            (folder / "model").write_text("next")
    else:
        assert local(tmp_path).resume_from() is None
    assert (tmp_path / "step-5" / "model").read_text() == "whole"
    assert not list(tmp_path.glob(".*"))


def test_messages_of_former_runs_go_and_drafts_which_may_be_of_live_ones_stay(
    tmp_path: Path,
) -> None:
    for name in (".step-1.partial", ".save-3-0", ".step-x.old", ".step-1.older", "notes"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / ".save-3-0", (0, time.time() - MESSAGES_SECONDS - 60))
    with local(tmp_path).save(5) as folder:
        (folder / "model").write_text("whole")
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [".step-1.older", ".step-1.partial", ".step-x.old", "notes", "step-5"]


def test_two_live_runs_in_one_folder_keep_their_messages(tmp_path: Path) -> None:
    of_other = tmp_path / ".save-3-0"
    of_other.mkdir()
    (of_other / "begun.json").write_text("{}")
    recent = time.time() - MESSAGES_SECONDS + 60
    os.utime(of_other, (recent, recent))
    with local(tmp_path).save(5) as folder:
        (folder / "model").write_text("whole")
    assert (of_other / "begun.json").exists()
    assert MESSAGES_SECONDS >= 3 * WAIT_SECONDS, "the longest wait of a rank"
