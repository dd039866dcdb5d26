"""The fence only rises, whoever raises it when, and says why it cannot be raised."""

import errno
import fcntl
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specs.checkpoint import FENCE
from trainer.checkpoint import fence
from trainer.checkpoint.fence import LOCK, raised_fence, read_fence
from trainer.errors import CheckpointError, OutrunError


def _raise(folder: Path, attempt: int) -> int:
    """Return the fence as it was while this attempt held it, or 0 when it was outrun."""
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
    "text", ["", "two\n", "-3\n", "\x00\x00", f"{2**31}\n", "9" * 5000, "1" * 21]
)
def test_a_fence_that_holds_no_number_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FENCE).write_text(text)
    with pytest.raises(CheckpointError, match="no attempt number") as caught:
        _raise(tmp_path, 1)
    assert caught.value.path == str(tmp_path / FENCE)
    assert caught.value.reason == "checkpoint_error"
    assert "legal: 0 to 2147483647" in str(caught.value)


def test_the_highest_attempt_can_raise_it(tmp_path: Path) -> None:
    assert _raise(tmp_path, 2**31 - 1) == 2**31 - 1
    assert read_fence(tmp_path) == 2**31 - 1
    (tmp_path / FENCE).write_text(f"{0:019}7\n")
    assert read_fence(tmp_path) == 7


@pytest.fixture
def impatient() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fence, "LOCK_SECONDS", 0.2)
        yield patch


def test_a_lock_that_is_never_released_is_named(
    tmp_path: Path, impatient: pytest.MonkeyPatch
) -> None:
    with (tmp_path / LOCK).open("ab") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match=r"FENCE\.lock was locked by another process"):
            _raise(tmp_path, 1)
    assert _raise(tmp_path, 1) == 1


def test_a_storage_without_locks_still_has_a_fence(
    tmp_path: Path, impatient: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    impatient.setattr(fcntl, "flock", refuse)
    assert [_raise(tmp_path, attempt) for attempt in (1, 3, 2)] == [1, 3, 0]
