"""Dead or faulty ranks: nothing is committed, and every other rank gets an error in time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.library.run.checkpoints.program import (
    JOB,
    Body,
    Program,
    own_file,
    save_on,
)
from trainyard.run.checkpoints.fence_file import (
    raised_fence_file,
)
from trainyard.run.checkpoints.save_messages import CheckpointSaveError, SaveMessages


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Start a function in its own process; return its id."""
    started = []

    def start(work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                work()
            finally:
                os._exit(9)
        started.append(pid)
        return pid

    yield start
    for pid in started:
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_is_killed_in_the_block_leaves_no_checkpoint(
    tmp_path: Path, forked: Callable[[Callable[[], None]], int]
) -> None:
    program = Program(tmp_path, 2, wait=0.5)

    def dying(rank: int, folder: Path) -> None:
        own_file(rank, folder)
        _die()

    with raised_fence_file(tmp_path / JOB, 1):
        pass
    forked(lambda: save_on(program.ranks[1], 3, dying))
    with pytest.raises(CheckpointSaveError, match="ranks 1 are not through the block of step 3"):
        save_on(program.ranks[0], 3, own_file)
    assert not list(tmp_path.rglob("COMMITTED"))
    Program(tmp_path, 1, attempt=2).ranks[0].resume_from()
    assert list((tmp_path / JOB / "a1").iterdir()) == []


def test_rank_0_that_is_killed_before_the_marker_leaves_no_checkpoint(
    tmp_path: Path,
    forked: Callable[[Callable[[], None]], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(tmp_path, 2, wait=0.5)
    monkeypatch.setattr("trainyard.run.checkpoints.program_storage.marker_of", _die)
    forked(lambda: save_on(program.ranks[0], 3, own_file))
    with pytest.raises(CheckpointSaveError, match="rank 0 has not ended the save"):
        save_on(program.ranks[1], 3, own_file)
    monkeypatch.undo()
    assert (tmp_path / JOB / "a1" / "step-3" / "manifest.json").exists()
    assert not list(tmp_path.rglob("COMMITTED"))
    Program(tmp_path, 1, attempt=2).ranks[0].resume_from()
    assert list((tmp_path / JOB / "a1").iterdir()) == []


def _link(_rank: int, folder: Path) -> None:
    (folder / "model.pt").symlink_to("/etc/passwd")


def _linked_folder(_rank: int, folder: Path) -> None:
    (folder / "shards").symlink_to("/etc")


def _pipe(_rank: int, folder: Path) -> None:
    os.mkfifo(folder / "model.pt")


def _unprintable(_rank: int, folder: Path) -> None:
    (folder / "a\nb").write_bytes(b"")


def _bytes_name(_rank: int, folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_bytes(b"")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_link, "is a symbolic link"),
        (_linked_folder, "is a symbolic link"),
        (_pipe, "is no regular file"),
        (_unprintable, "characters that cannot be printed"),
        (_bytes_name, "characters that cannot be printed"),
    ],
)
def test_only_regular_files_are_committed(tmp_path: Path, body: Body, words: str) -> None:
    errors = Program(tmp_path, 2).save(3, own_file, rank_1=body)
    assert all(isinstance(error, CheckpointSaveError) for error in errors)
    assert all(words in str(error) for error in errors)
    assert not list(tmp_path.rglob("COMMITTED"))


FORGED = [
    ("seen-1", {"names": ["../../FENCE"]}, "outside of the checkpoint's folder"),
    ("seen-1", {"names": ["/etc/passwd"]}, "outside of the checkpoint's folder"),
    ("seen-1", {"names": [7]}, "a file's name is no text"),
    ("seen-1", {"names": ["x"] * 10_001}, "names no list of up to 10,000 files"),
    ("seen-1", ["x"], "is no message of a rank"),
    ("done-1", {"files": [{"path": "../x", "size": 1, "checksum": "0" * 64}]}, "no file of its sh"),
    ("done-1", {"files": [{"path": "rank-0.pt", "size": -1, "checksum": "0" * 64}]}, "no file of"),
    ("done-1", {"files": "x"}, "no file of its share"),
]


@pytest.mark.parametrize(("name", "content", "words"), FORGED)
def test_a_forged_message_of_a_rank_commits_nothing(
    tmp_path: Path, name: str, content: object, words: str
) -> None:
    program = Program(tmp_path, 2, wait=2.0)
    post = SaveMessages.post

    def forging(messages: SaveMessages, posted: str, message: dict[str, Any]) -> None:
        post(messages, posted, content if posted == name else message)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SaveMessages, "post", forging)
        errors = program.save(3, own_file)
    assert words in str(errors[0])
    assert isinstance(errors[0], CheckpointSaveError)
    assert not list(tmp_path.rglob("COMMITTED"))


@pytest.mark.parametrize("kind", ["huge", "link", "pipe", "deep"])
def test_a_message_that_is_no_small_regular_file_commits_nothing(tmp_path: Path, kind: str) -> None:
    program = Program(tmp_path, 2, wait=2.0)

    def hostile(_rank: int, _folder: Path) -> None:
        path = tmp_path / JOB / "a1" / ".save-0" / "seen-1.json"
        if kind == "huge":
            with path.open("wb") as file:
                file.truncate(2**40)
        elif kind == "link":
            path.symlink_to("/dev/zero")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_text("[" * 100_000)
        os._exit(0)

    with raised_fence_file(tmp_path / JOB, 1):
        pass
    pid = os.fork()
    if pid == 0:
        save_on(program.ranks[1], 3, hostile)
    with pytest.raises(CheckpointSaveError, match="is no message of a rank"):
        save_on(program.ranks[0], 3, own_file)
    os.waitpid(pid, 0)
    assert not list(tmp_path.rglob("COMMITTED"))
