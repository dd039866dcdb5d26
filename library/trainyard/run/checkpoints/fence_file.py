"""The fence in a job's folder: attempts with a lower number cannot commit."""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.run.atomic import replace_file, sync_folder
from trainyard.run.checkpoints.checkpoint_names import FENCE

LOCK = "FENCE.lock"
LOCK_SECONDS = 30.0
"""Maximum wait for the lock of the fence file, in seconds. A process holds the lock for
milliseconds; a longer wait means that the process hangs."""
MAX_ATTEMPTS = 2**31 - 1
"""Highest legal number of an attempt; the catalog's column cannot hold a higher number."""
MAX_DIGITS = 20
# Some network file systems are mounted without locks. There, an attempt can be fenced off after
# it has read the fence, and still write its marker; the server refuses such a commit.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


class FenceError(Exception):
    """The fence file has no attempt number, or its lock is never released."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = str(path)


class FencedOffError(FenceError):
    """A newer attempt of the job has raised the fence; this attempt must not commit."""


def check_fence(highest: int, attempt: int, path: object) -> None:
    """Raise an error if the fence is above the number of an attempt.

    Raises:
        FencedOffError: a newer attempt has raised the fence.
    """
    if highest > attempt:
        raise FencedOffError(
            f"attempt {attempt} was outrun: {path} belongs to attempt {highest}; "
            f"legal: attempt {highest + 1} or later, another job name, or another storage root",
            path,
        )


@contextmanager
def raised_fence_file(job_folder: Path, attempt: int) -> Iterator[None]:
    """Raise the fence of a job's folder to `attempt`, and hold the lock during the block.

    Raises:
        FencedOffError: a newer attempt has already raised the fence.
        FenceError: the fence file has no number, or its lock is never released.
        OSError: the storage reports an error.
    """
    path = job_folder / FENCE
    job_folder.mkdir(parents=True, exist_ok=True)
    lock_path = job_folder / LOCK
    with lock_path.open("ab") as lock:  # NFS locks only a file that is open for writing
        take_lock(lock.fileno(), lock_path)
        highest = read_fence_file(job_folder)
        check_fence(highest, attempt, path)
        if highest < attempt:
            replace_file(path, f"{attempt}\n", mode=0o666)
            sync_folder(job_folder)
        # Holding the lock during the block prevents a newer attempt from raising the fence between
        # this check and a marker that the block writes.
        yield


def read_fence_file(job_folder: Path) -> int:
    """Return the number of the highest attempt that raised the fence; 0 if no attempt did.

    Raises:
        FenceError: the file has no attempt number.
        OSError: the storage reports an error.
    """
    path = job_folder / FENCE
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return 0
    return fence_number(text, path)


def fence_number(text: str, path: object) -> int:
    """Return the attempt number in the text of a fence file.

    Raises:
        FenceError: the text is no attempt number.
    """
    digits = text.strip()
    # Check the length first, because `int` raises ValueError for thousands of digits.
    if not (digits.isdecimal() and len(digits) <= MAX_DIGITS and int(digits) <= MAX_ATTEMPTS):
        raise FenceError(
            f"{path} holds {text[:40]!r}, no attempt number; legal: 0 to {MAX_ATTEMPTS}", path
        )
    return int(digits)


def take_lock(descriptor: int, path: object) -> None:
    """Lock an open file; do nothing if the storage does not support locks.

    Raises:
        FenceError: another process holds the lock for longer than `LOCK_SECONDS`.
        OSError: the storage reports an error.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise FenceError(
                    f"{path} was locked by another process for {LOCK_SECONDS:.0f} s", path
                ) from None
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return None
