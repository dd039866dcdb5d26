"""The fence: a number on storage below which no attempt of the job may commit any more."""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from trainer.checkpoint.commit import Point, reached, write_durably
from trainer.errors import CheckpointError, OutrunError
from trainer.storage.io_errors import storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import FENCE

LOCK = "FENCE.lock"
LOCK_SECONDS = 30.0  # it is held for milliseconds; longer means that its holder is stuck
MOST_ATTEMPTS = 2**31 - 1
"""Highest attempt number: that of the catalog's column."""
MOST_DIGITS = 20
# Some network file systems are mounted without locks. Between reading the fence and writing the
# marker there is then a moment in which an outrun attempt can still commit: the server refuses it.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@contextmanager
def raised_fence(job_folder: StoragePath, attempt: int) -> Iterator[None]:
    """Raise the job's fence to `attempt` and hold it there: nobody moves it meanwhile.

    In an object store nobody can be held off: there, the fence is raised and seen to be as high.

    Raises:
        OutrunError: a newer attempt has raised it already.
        CheckpointError: the fence cannot be read, written or locked.
    """
    path = job_folder / FENCE
    with _held(job_folder):
        highest = read_fence(job_folder)
        if highest > attempt:
            raise OutrunError(
                f"attempt {attempt} was outrun: {path} belongs to attempt {highest}; "
                f"legal: attempt {highest + 1} or later, another job name, or another storage root",
                path=str(path),
            )
        if highest < attempt:
            _write(path, attempt)
        reached(Point.FENCED, path)
        yield


def read_fence(job_folder: StoragePath) -> int:
    """Return the highest attempt that raised the fence, or 0.

    Raises:
        CheckpointError: the file is unreadable or holds no number.
    """
    path = job_folder / FENCE
    if isinstance(path, ObjectPath):
        with storage_errors("read", path):
            return max((_number(raised.name, raised) for raised in path.beneath()), default=0)
    try:
        with storage_errors("read", path):
            text = path.read_text(encoding="ascii", errors="replace")
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return 0
        raise
    return _number(text, path)


def _number(text: str, path: StoragePath) -> int:
    digits = text.strip()
    # The length comes first: Python refuses to read thousands of digits as a number.
    if not (digits.isdecimal() and len(digits) <= MOST_DIGITS and int(digits) <= MOST_ATTEMPTS):
        raise CheckpointError(
            f"{path} holds {text[:40]!r}, no attempt number; legal: 0 to {MOST_ATTEMPTS}",
            path=str(path),
        )
    return int(digits)


def _write(path: StoragePath, attempt: int) -> None:
    # Of objects, each attempt has its own, so that none overwrites a higher one's without a lock.
    of_attempt = path / str(attempt) if isinstance(path, ObjectPath) else path
    write_durably(of_attempt, f"{attempt}\n".encode())


def _held(job_folder: StoragePath) -> AbstractContextManager[None]:
    if not isinstance(job_folder, Path):
        return nullcontext()
    with storage_errors("create", job_folder):
        job_folder.mkdir(parents=True, exist_ok=True)
    return _locked(job_folder / LOCK)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with storage_errors("lock", path):
        file = path.open("ab")  # NFS locks only what is open for writing
    with file:
        with storage_errors("lock", path):
            _lock(file.fileno(), path)
        yield


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{path} was locked by another process for {LOCK_SECONDS:.0f} s",
                    path=str(path),
                ) from None
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return None
