"""The fence only rises, in any order of attempts, and its errors name the cause."""

import errno
import fcntl
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from trainer.checkpoint.fence import raised_fence, read_fence
from trainer.errors import CheckpointError, OutrunError
from trainyard.run.checkpoints import fence_file
from trainyard.run.checkpoints.checkpoint_names import FENCE
from trainyard.run.checkpoints.fence_file import LOCK


def _raise(folder: Path, attempt: int) -> int:
    """Return the fence while this attempt held it, or 0 if a newer attempt did."""
    try:
        with raised_fence(folder, attempt):
            return read_fence(folder)
    except OutrunError:
        return 0


def test_it_rises_stays_and_is_never_lowered(tmp_path: Path) -> None:
    assert read_fence(tmp_path) == 0
    assert _raise(tmp_path, 2) == 2
    assert _raise(tmp_path, 2) == 2
    assert _raise(tmp_path, 5) == 5
    outrun = pytest.raises(OutrunError, match=r"attempt 3 was outrun: .*FENCE belongs to attempt 5")
    with outrun, raised_fence(tmp_path, 3):
        pytest.fail("an outrun attempt got in")
    assert read_fence(tmp_path) == 5


def test_attempts_that_raise_it_at_the_same_time_never_lower_it(tmp_path: Path) -> None:
    attempts = list(range(1, 101))
    random.Random(0).shuffle(attempts)
    with ThreadPoolExecutor(16) as pool:
        seen = list(pool.map(lambda attempt: _raise(tmp_path, attempt), attempts))
    assert all(found in (0, attempt) for found, attempt in zip(seen, attempts, strict=True))
    assert read_fence(tmp_path) == 100


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", ""),
        (b"two\n", "two\n"),
        (b"-3\n", "-3\n"),
        (b"\x00\x00", "\x00\x00"),
        (b"\xb2", "\N{REPLACEMENT CHARACTER}"),  # no digit, and no ASCII
        ("\N{ARABIC-INDIC DIGIT THREE}".encode(), "\N{REPLACEMENT CHARACTER}" * 2),
        (f"{2**31}\n".encode(), f"{2**31}\n"),
        (b"9" * 5000, "9" * 40),
        (b"1" * 21, "1" * 21),
        (b"0" * 20 + b"7", "0" * 20 + "7"),
    ],
)
def test_a_fence_that_holds_no_number_is_named(tmp_path: Path, content: bytes, shown: str) -> None:
    path = tmp_path / FENCE
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        _raise(tmp_path, 1)
    assert caught.value.path == str(path)
    assert caught.value.reason == "checkpoint_error"
    assert str(caught.value) == (
        f"{path} holds {shown!r}, no attempt number; legal: 0 to 2147483647"
    )
    assert path.read_bytes() == content


@pytest.mark.parametrize(("name", "verb"), [(FENCE, "read"), (LOCK, "lock")])
def test_a_folder_in_the_place_of_the_fence_or_its_lock_is_named(
    tmp_path: Path, name: str, verb: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=f"cannot {verb} .*{name}: Is a directory") as caught:
        _raise(tmp_path, 1)
    assert caught.value.path == str(tmp_path / name)


def test_a_file_in_the_place_of_the_jobs_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.write_text("")
    with pytest.raises(CheckpointError, match=r"cannot create .*job: File exists") as caught:
        _raise(folder, 1)
    assert caught.value.path == str(folder)


def test_the_folder_of_a_job_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "several" / "levels" / "job"
    assert _raise(folder, 3) == 3
    assert (folder / FENCE).read_bytes() == b"3\n"


def test_the_highest_attempt_can_raise_it(tmp_path: Path) -> None:
    assert _raise(tmp_path, 2**31 - 1) == 2**31 - 1
    assert read_fence(tmp_path) == 2**31 - 1
    (tmp_path / FENCE).write_text(f"{0:019}7\n")
    assert read_fence(tmp_path) == 7


@pytest.fixture
def impatient() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fence_file, "LOCK_SECONDS", 0.2)
        yield patch


def test_a_lock_that_is_never_released_is_named(
    tmp_path: Path, impatient: pytest.MonkeyPatch
) -> None:
    with (tmp_path / LOCK).open("ab") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        words = r"FENCE\.lock was locked by another process for 0 s$"
        with pytest.raises(CheckpointError, match=words) as caught:
            _raise(tmp_path, 1)
        assert caught.value.path == str(tmp_path / LOCK)
    assert _raise(tmp_path, 1) == 1


def test_a_lock_that_is_released_in_time_is_waited_for(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, (tmp_path / LOCK).open("ab") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        raised = pool.submit(_raise, tmp_path, 1)
        assert not wait([raised], timeout=0.2).done
        fcntl.flock(holder, fcntl.LOCK_UN)
        assert raised.result() == 1


def test_a_lock_that_fails_otherwise_is_named(
    tmp_path: Path, impatient: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    impatient.setattr(fcntl, "flock", refuse)
    with pytest.raises(CheckpointError, match=r"cannot lock .*: Input/output error") as caught:
        _raise(tmp_path, 1)
    assert caught.value.path == str(tmp_path / LOCK)


def test_a_storage_without_locks_still_has_a_fence(
    tmp_path: Path, impatient: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    impatient.setattr(fcntl, "flock", refuse)
    assert [_raise(tmp_path, attempt) for attempt in (1, 3, 2)] == [1, 3, 0]
