"""The points that a save passes on its way, each said in the log when a rank gets there."""

from __future__ import annotations

import logging
from enum import StrEnum

from trainer.storage.root import StoragePath

logger = logging.getLogger(__name__)


class Point(StrEnum):
    """Where a save is on one rank; docs/checkpoints.md tells what a death there leaves."""

    BEGUN = "begun"
    """Nothing is done yet. Every rank."""
    FENCED = "holding the fence"
    """The fence's lock is held and no newer attempt is there. Rank 0, at the start and the end."""
    FOLDER_MADE = "folder made"
    """The checkpoint's folder is there, and empty. Rank 0."""
    PLANNED = "planned"
    """This rank knows what it writes and sends. Every rank."""
    STAGED = "staged"
    """What it writes and sends will not change any more. Every rank."""
    FILE_MADE = "file made"
    """A data file or `.metadata` is there, and empty."""
    PIECE_WRITTEN = "piece written"
    """The system has taken another piece of that file, 8 MiB at most."""
    FILE_SYNCED = "file synced"
    """That file is whole and durable."""
    PART_WRITTEN = "part written"
    """This rank has written and sent all that is its own. Every rank."""
    PARTS_KNOWN = "parts known"
    """All ranks have done so, `.metadata` is there, sizes and checksums are known. Every rank."""
    REPLACING = "replacing"
    """Fence, manifest or marker is whole beside the place where it belongs. Rank 0."""
    NAMED = "named"
    """It has its name, which is not durable yet. Rank 0."""
    COMMITTED = "committed"
    """The marker is durable, the fence's lock is free again. Rank 0."""
    TOLD = "told"
    """The commit is told to whoever began the save. Every rank."""


def reached(point: Point, path: StoragePath) -> None:
    """Say in the log that this rank got there, at level DEBUG: it costs nothing when it is off.

    Args:
        point: where it is.
        path: the checkpoint's folder, or the file that the point is about.
    """
    logger.debug("%s: %s", point, path)
