"""The folder of an operation: checked paths of its task, and its progress file."""

from __future__ import annotations

import re
import time
from pathlib import Path

from pydantic import BaseModel

from trainer.errors import CheckpointError, LaunchError
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import StoragePath, storage_root
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.operations import (
    PROGRESS,
    OperationOrder,
    OperationProgress,
    OperationTask,
)
from trainyard.run.atomic import replace_file
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.spec.storage_uri import ROOT_FILE

PROGRESS_SECONDS = 0.2  # each update replaces a file; most checks of a file take less time
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ProgressWriter:
    """Writes the progress of an operation, at most once per `PROGRESS_SECONDS`."""

    def __init__(self, folder: Path, *, total: int) -> None:
        self._path = folder / PROGRESS
        self._total = total
        self._done = 0
        self._written_at = 0.0

    def begin(self, doing: str) -> None:
        """Report the start of a part of the work."""
        now = time.monotonic()
        if now - self._written_at >= PROGRESS_SECONDS:
            self._written_at = now
            progress = OperationProgress(doing=doing[:200], done=self._done, total=self._total)
            write_record(self._path, progress)

    def advance(self, done: int) -> None:
        """Add completed work, in the unit of `total`."""
        self._done = min(self._done + done, self._total)


def folders_of(order: OperationOrder) -> list[StoragePath]:
    """Return the folders in a task; each must be the canonical path of a checkpoint of the job.

    Raises:
        LaunchError: a path is not canonical, or a link leads out of the root.
        CheckpointError: the UUID of the root differs or cannot be read.
    """
    root = storage_root(order.root_path)
    if order.root_id is not None:
        check_root(root, order.root_id)
    folders: list[StoragePath] = []
    for path in order.task.paths:
        folder = root / path
        if not _is_checkpoint_path(order.task, path) or folder.resolve() != root.resolve() / path:
            raise LaunchError(
                f"{path!r} is no folder of a checkpoint of {order.task.job_id} beneath "
                f"{order.root_path}",
                path=str(folder),
            )
        folders.append(folder)
    return folders


def checkpoint_of(order: OperationOrder) -> tuple[StoragePath, ResumePoint]:
    """Return the folder of a task's only checkpoint, and the resume point that it must have.

    Raises:
        LaunchError: the task names no checkpoint or several; also raised as for `folders_of`.
    """
    point = order.task.checkpoint
    if point is None or len(order.task.paths) != 1:
        raise LaunchError("the task names no checkpoint to read")
    (folder,) = folders_of(order)
    return folder, point


def check_root(root: StoragePath, expected: str | None) -> None:
    """Reject a root whose UUID is not `expected` (None: any), such as an unmounted storage.

    Raises:
        CheckpointError: the UUID of the root is not `expected`, or cannot be read.
    """
    path = root / ROOT_FILE
    with storage_errors("read", path):
        found = path.read_bytes().decode("utf-8", errors="replace").strip()
    if expected is not None and found != expected:
        raise CheckpointError(f"{root} is storage {found}, not {expected}", path=str(path))


def write_record(path: Path, record: BaseModel) -> None:
    """Replace a file in the operation's folder atomically."""
    replace_file(path, record.model_dump_json(indent=1) + "\n", durable=False)


def _is_checkpoint_path(task: OperationTask, path: str) -> bool:
    """Return whether a path is exactly one that `checkpoint_path` returns for the job."""
    attempt, _, step = path.removeprefix(f"{task.job_id}/a").partition("/step-")
    if not (attempt.isdecimal() and step.isdecimal() and JOB_ID.fullmatch(task.job_id)):
        return False
    return path == checkpoint_path(task.job_id, int(attempt), int(step))
