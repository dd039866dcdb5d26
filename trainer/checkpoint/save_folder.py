"""The folder of a save: its points, its creation, durable writes, and its removal. No torch."""

from __future__ import annotations

import logging
import os
import shutil
from enum import StrEnum
from pathlib import Path

from trainer.checkpoint.manifest import checkpoint_folders
from trainer.storage.io_errors import storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import StoragePath
from trainyard.run.atomic import replacing, sync_folder
from trainyard.run.checkpoints.checkpoint_names import COMMITTED

logger = logging.getLogger(__name__)


class Point(StrEnum):
    """A point of a save on one rank; docs/checkpoint-saves.md lists the state after a death there.

    The fault tests kill a rank at each point: a new step of a save gets a point and a test.
    """

    BEGUN = "begun"
    """Nothing is done yet. Every rank."""
    FENCED = "holding the fence"
    """The fence's lock is held and no newer attempt exists. Rank 0, at the start and the end."""
    FOLDER_MADE = "folder made"
    """The checkpoint's folder exists and is empty. Rank 0."""
    PLANNED = "planned"
    """This rank has its plan of writes and sends. Every rank."""
    STAGED = "staged"
    """The bytes to write and send no longer change. Every rank."""
    FILE_MADE = "file made"
    """A data file or an index exists and is empty."""
    PIECE_WRITTEN = "piece written"
    """The system has taken another piece of that file, 8 MiB at most."""
    FILE_SYNCED = "file synced"
    """That file is whole and durable."""
    PART_WRITTEN = "part written"
    """This rank has written its file and sent its chunks to other writers. Every rank."""
    PARTS_KNOWN = "parts known"
    """All parts are written, sizes and checksums are known. Every rank."""
    REPLACING = "replacing"
    """Fence, manifest or marker is whole and durable under a temporary name. Rank 0."""
    NAMED = "named"
    """The file has its name, which is not durable yet. Rank 0."""
    COMMITTED = "committed"
    """The marker is durable, the fence's lock is released. Rank 0."""
    REPORTED = "reported"
    """The observer of the save has the commit. Every rank."""


def reached(point: Point, path: StoragePath) -> None:
    """Log at level DEBUG that this rank reached a point; without that level it costs nothing.

    Args:
        point: the point.
        path: the checkpoint's folder, or the file in question.
    """
    logger.debug("%s: %s", point, path)


def create_folder(folder: StoragePath) -> None:
    """Create the folder of a new checkpoint exclusively; a leftover without marker is replaced.

    An object store has no folders: the leftover is removed, and each file is created exclusively.

    Raises:
        CheckpointError: it cannot be created, or another process is creating it.
    """
    with storage_errors("create", folder):
        if isinstance(folder, ObjectPath):
            folder.remove_all()
            return
        if folder.exists():
            shutil.rmtree(folder)
        missing = [parent for parent in folder.parents if not parent.exists()]
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        # A new name is durable only after its parent is synced, up to the first existing folder.
        for changed in {folder.parent, *(parent.parent for parent in missing)}:
            sync_folder(changed)
    reached(Point.FOLDER_MADE, folder)


def collect_leftovers(root: StoragePath, job_id: str, *, attempt: int) -> list[StoragePath]:
    """Remove the half-written checkpoints of a job up to an attempt; return the removed folders.

    The caller has raised the fence to that attempt and has not saved yet: no attempt that is still
    writing one of them can commit it.
    """
    with storage_errors("read", root / job_id):
        leftovers = [
            folder
            for folder in checkpoint_folders(root, job_id)
            if _is_of(folder, attempt) and not (folder / COMMITTED).exists()
        ]
    return [folder for folder in leftovers if _remove(folder)]


def _is_of(folder: StoragePath, attempt: int) -> bool:
    number = folder.parent.name.removeprefix("a")
    linked = isinstance(folder, Path) and folder.is_symlink()
    return number.isdecimal() and int(number) <= attempt and not linked


def _remove(folder: StoragePath) -> bool:
    """Remove a folder; return whether it is gone. The next attempt removes the rest."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    try:
        folder.remove_all()
    except OSError:
        return False
    return True


def discard(folder: StoragePath) -> None:
    """Remove the files of a failed save, the marker first; errors are ignored."""
    # A remaining marker would turn the rest into a checkpoint: then nothing else is removed.
    try:
        (folder / COMMITTED).unlink(missing_ok=True)
    except OSError:
        return
    _remove(folder)


def write_durably(path: StoragePath, content: bytes) -> None:
    """Replace a file atomically; after the return it survives a power cut.

    A put into an object store has both properties.

    Raises:
        CheckpointError: it cannot be written.
    """
    if isinstance(path, ObjectPath):
        with storage_errors("write", path):
            path.put(content)
        return
    with storage_errors("write", path):
        # The content becomes durable before it gets its name: after a power cut the name would
        # otherwise lead to an empty file. The sync is here, not in `replacing`, so that the fault
        # tests can kill a rank between it and the rename.
        with replacing(path, mode=0o666, durable=False) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            reached(Point.REPLACING, path)
        reached(Point.NAMED, path)
        sync_folder(path.parent)
