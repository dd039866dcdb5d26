"""The fence: a number on a job's storage; an attempt with a lower number cannot commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.checkpoint.save_folder import Point, reached, write_durably
from trainer.errors import CheckpointError, OutrunError
from trainer.storage.io_errors import storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import StoragePath
from trainyard.run.checkpoints.checkpoint_names import FENCE
from trainyard.run.checkpoints.fence_file import (
    LOCK,
    FencedOffError,
    FenceError,
    check_fence,
    fence_number,
    read_fence_file,
    take_lock,
)


@contextmanager
def raised_fence(job_folder: StoragePath, attempt: int) -> Iterator[None]:
    """Raise the job's fence to `attempt`, and hold the fence's lock while the block runs.

    An object store has no lock. On an object store, another attempt may therefore raise the fence
    during the block.

    Raises:
        OutrunError: a newer attempt has already raised the fence.
        CheckpointError: the fence cannot be read, written or locked.
    """
    path = job_folder / FENCE
    with _held(job_folder):
        highest = read_fence(job_folder)
        with _fence_errors():
            check_fence(highest, attempt, path)
        if highest < attempt:
            _write(path, attempt)
        # The block runs under the lock, so no newer attempt can raise the fence between this check
        # and a marker written in the block.
        reached(Point.FENCED, path)
        yield


def read_fence(job_folder: StoragePath) -> int:
    """Return the number of the highest attempt that raised the fence, or 0.

    Raises:
        CheckpointError: the file is unreadable, or its content is no attempt number.
    """
    path = job_folder / FENCE
    with storage_errors("read", path), _fence_errors():
        if isinstance(job_folder, Path):
            return read_fence_file(job_folder)
        raised = (job_folder / FENCE).beneath()
        return max((fence_number(each.name, each) for each in raised), default=0)


@contextmanager
def _fence_errors() -> Iterator[None]:
    """Convert errors of the library's fence to errors of the trainer."""
    try:
        yield
    except FencedOffError as error:
        raise OutrunError(str(error), path=error.path) from None
    except FenceError as error:
        raise CheckpointError(str(error), path=error.path) from None


def _write(path: StoragePath, attempt: int) -> None:
    # An object store has no lock, so an attempt could overwrite a higher number. Each attempt
    # therefore puts its own object, and the highest number counts.
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
        file = path.open("ab")  # NFS grants an exclusive lock only on a file opened for writing
    with file:
        with storage_errors("lock", path), _fence_errors():
            take_lock(file.fileno(), path)
        yield
