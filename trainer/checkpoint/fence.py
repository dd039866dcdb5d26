"""The fence: a number on storage; attempts of the job with a lower number cannot commit."""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.checkpoint.save_folder import Point, reached, write_durably
from trainer.errors import CheckpointError, OutrunError
from trainer.storage.io_errors import storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import FENCE

LOCK = "FENCE.lock"
LOCK_SECONDS = 30.0
"""Longest wait for the lock. It is held for milliseconds; longer means that its holder hangs."""
MOST_ATTEMPTS = 2**31 - 1
"""Highest attempt number: that of the catalog's column."""
MOST_DIGITS = 20
# Some network file systems are mounted without locks. There, an outrun attempt can commit between
# reading the fence and writing the marker; the server refuses such a commit.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@contextmanager
def raised_fence(job_folder: StoragePath, attempt: int) -> Iterator[None]:
    """Raise the job's fence to `attempt` and hold its lock during the block.

    An object store has no lock: there, the fence is raised and read, and may rise during the block.

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
        # The block runs under the lock: between this check and a marker written in the block no
        # newer attempt can raise the fence.
        reached(Point.FENCED, path)
        yield


def read_fence(job_folder: StoragePath) -> int:
    """Return the highest attempt that raised the fence, or 0.

    Raises:
        CheckpointError: the file is unreadable or its content is no attempt number.
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
    # The length comes first: `int` raises ValueError for thousands of digits.
    if not (digits.isdecimal() and len(digits) <= MOST_DIGITS and int(digits) <= MOST_ATTEMPTS):
        raise CheckpointError(
            f"{path} holds {text[:40]!r}, no attempt number; legal: 0 to {MOST_ATTEMPTS}",
            path=str(path),
        )
    return int(digits)


def _write(path: StoragePath, attempt: int) -> None:
    # Without a lock an attempt could overwrite a higher number: in an object store each attempt
    # puts its own object, and the highest counts.
    of_attempt = path / str(attempt) if isinstance(path, ObjectPath) else path
    write_durably(of_attempt, f"{attempt}\n".encode())


@contextmanager
def _held(job_folder: StoragePath) -> Iterator[None]:
    if not isinstance(job_folder, Path):
        yield
        return
    with storage_errors("create", job_folder):
        job_folder.mkdir(parents=True, exist_ok=True)
    path = job_folder / LOCK
    with storage_errors("lock", path):
        file = path.open("ab")  # NFS grants an exclusive lock only on a file open for writing
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
