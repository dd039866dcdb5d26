"""The folder of a save: creation, durable writes, fault points and removal. No torch."""

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
    """A point of a save on one rank; docs/checkpoint-saves.md describes a death at each point.

    The fault tests kill a rank at each point, so a new step of a save needs a point and a test.
    """

    BEGUN = "begun"
    """Nothing is done yet; reached on every rank."""
    FENCED = "holding the fence"
    """Rank 0 holds the fence's lock, and no newer attempt exists; reached at the start and at the
    end of a save.
    """
    FOLDER_MADE = "folder made"
    """The checkpoint's folder exists and is empty; reached on rank 0."""
    PLANNED = "planned"
    """This rank has its plan of writes and sends; reached on every rank."""
    STAGED = "staged"
    """The bytes to write and send can no longer change; reached on every rank."""
    FILE_MADE = "file made"
    """A data file or an index file exists and is empty."""
    PIECE_WRITTEN = "piece written"
    """The system has accepted another piece of the file, less than 9 MiB."""
    FILE_SYNCED = "file synced"
    """The file is complete and durable."""
    PART_WRITTEN = "part written"
    """This rank has written its file and sent its chunks to other writers; reached on every
    rank."""
    PARTS_KNOWN = "parts known"
    """All parts are written, and their sizes and checksums are known; reached on every rank."""
    REPLACING = "replacing"
    """Fence, manifest or marker is complete and durable under a temporary name; reached on rank 0.
    """
    NAMED = "named"
    """The file has its final name, which is not durable yet; reached on rank 0."""
    COMMITTED = "committed"
    """The marker is durable, and the fence's lock is released; reached on rank 0."""
    REPORTED = "reported"
    """The observer of the save has received the commit; reached on every rank."""


def reached(point: Point, path: StoragePath) -> None:
    """Log, at level DEBUG, that this rank reached a point; at other levels the call costs nothing.

    Args:
        point: the point that was reached.
        path: folder of the checkpoint, or the file that the point concerns.
    """
    logger.debug("%s: %s", point, path)


def create_folder(folder: StoragePath) -> None:
    """Create the folder of a new checkpoint exclusively; remove an existing folder first.

    The caller must have found no marker in it. An object store has no folders. In an object store,
    this call only removes the leftover, and each file is later created exclusively.

    Raises:
        CheckpointError: the folder cannot be created, or another process is creating it.
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
        # A new folder's name is durable only once its parent is synced, up to the first folder that
        # existed.
        for changed in {folder.parent, *(parent.parent for parent in missing)}:
            sync_folder(changed)
    reached(Point.FOLDER_MADE, folder)


def collect_leftovers(root: StoragePath, job_id: str, *, attempt: int) -> list[StoragePath]:
    """Remove uncommitted checkpoints of a job's attempts up to `attempt`; return the removed
    folders.

    The caller must have raised the fence to that attempt, and must not have saved yet. The raised
    fence prevents a commit by any attempt that still writes such a checkpoint.
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
    """Remove a folder; return whether it is gone. The next attempt removes remaining files."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    try:
        folder.remove_all()
    except OSError:
        return False
    return True


def discard(folder: StoragePath) -> None:
    """Remove the files of a failed save, its marker first; errors are ignored."""
    # If the marker stays, remove nothing: marker and other files would count as a checkpoint.
    try:
        (folder / COMMITTED).unlink(missing_ok=True)
    except OSError:
        return
    _remove(folder)


def write_durably(path: StoragePath, content: bytes) -> None:
    """Replace a file atomically; once the call returns, the file survives a power cut.

    In an object store, every upload of an object is atomic and durable anyway.

    Raises:
        CheckpointError: the file cannot be written.
    """
    if isinstance(path, ObjectPath):
        with storage_errors("write", path):
            path.put(content)
        return
    with storage_errors("write", path):
        # The content becomes durable before the file gets its name. Otherwise the name could lead
        # to an empty file after a power cut. The sync is here and not in `replacing`, so that the
        # fault tests can kill a rank between the sync and the rename.
        with replacing(path, mode=0o666, durable=False) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            reached(Point.REPLACING, path)
        reached(Point.NAMED, path)
        sync_folder(path.parent)
