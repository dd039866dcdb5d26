"""Watches the disk space that a program takes in its run directory."""

from __future__ import annotations

from pathlib import Path

from worker.launchers.base import Share
from worker.node.folder_usage import FolderWatch, Limit
from worker.node.node_store import WorkerRun

MAX_RUN_FILES = 1_000_000
"""Maximum number of files and folders in a program's run directory; to scan more would take
minutes.
"""


def program_disk(run: WorkerRun, share: Share) -> FolderWatch | None:
    """Return the watch over a program's run directory; None for the built-in trainer."""
    if share.spec.program is None:
        return None
    user = share.launch.user
    limit = Limit(share.launch.run_bytes, MAX_RUN_FILES)
    return FolderWatch(Path(run.root), limit, user=user)
