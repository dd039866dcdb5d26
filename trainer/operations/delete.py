"""Deletes checkpoints from storage; idempotent; durably removes the marker first."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from trainer.operations.operation_folder import ProgressWriter, folders_of
from trainer.storage.io_errors import storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import StoragePath, storage_root
from trainyard.protocol.operations import OperationOrder, OperationOutcome
from trainyard.run.atomic import sync_folder
from trainyard.run.checkpoints.checkpoint_names import COMMITTED


def delete_all(order: OperationOrder, operation: Path) -> OperationOutcome:
    """Delete the checkpoints in a task; with `whole_job`, also the rest of the job's folder.

    Raises:
        LaunchError: a path is no checkpoint folder of the job, so nothing was deleted.
        CheckpointError: the root has another UUID, or the storage reports an error. A partly
            deleted checkpoint is unusable.
    """
    folders = folders_of(order)
    with storage_errors("read", storage_root(order.root_path)):
        names = {folder: _files(folder) for folder in folders}
    progress = ProgressWriter(operation, total=sum(map(len, names.values())))
    for folder, files in names.items():
        progress.begin(f"deletes {folder.parent.name}/{folder.name}")
        delete_checkpoint(folder)
        progress.advance(len(files))
    if order.task.whole_job:
        _delete_rest(storage_root(order.root_path) / order.task.job_id)
    count = sum(map(len, names.values()))
    return OperationOutcome(
        outcome="succeeded",
        message=f"{len(folders)} checkpoint{'' if len(folders) == 1 else 's'}, {count} files",
        files=count,
    )


def delete_checkpoint(folder: StoragePath) -> None:
    """Delete one checkpoint; the call is idempotent and may be killed at any moment.

    Raises:
        CheckpointError: the storage reports an error.
    """
    with storage_errors("delete", folder):
        if isinstance(folder, ObjectPath):
            (folder / COMMITTED).unlink(missing_ok=True)
            return folder.remove_all()
        if not folder.exists():
            return None
        (folder / COMMITTED).unlink(missing_ok=True)
        # Sync before any other removal, so that the marker cannot reappear after a power cut.
        sync_folder(folder)
        _remove(folder)
        return sync_folder(folder.parent)


def _delete_rest(job: StoragePath) -> None:
    """Delete the folder of a deleted job: its fence, attempts and incomplete checkpoints."""
    with storage_errors("delete", job):
        if isinstance(job, ObjectPath):
            return job.remove_all()
        if not job.exists() or job.is_symlink():
            return None
        _remove(job)
        return sync_folder(job.parent)


def _remove(folder: Path) -> None:
    """Remove a tree without following links; another process may delete the same tree."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _files(folder: StoragePath) -> list[StoragePath]:
    if isinstance(folder, ObjectPath):
        return list(folder.beneath())
    return [path for path in folder.glob("**/*") if not path.is_dir()]
