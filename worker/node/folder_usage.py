"""Disk space that a folder takes, measured within bounds, and a watch of it in a thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

BLOCK = 512
"""Unit of `st_blocks`, whatever the file system."""
LOOK_SECONDS = 5.0
"""Shortest pause between two looks."""
PAUSE_FACTOR = 20
"""Pause between two looks as a multiple of the last one: at most a twentieth of a core."""


@dataclass(frozen=True)
class Limit:
    """What a folder may hold."""

    size: int
    """Bytes on disk: a hole of a file takes none."""
    entries: int
    """Files and folders."""


def excess(folder: Path, limit: Limit) -> str | None:
    """Return how a folder exceeds a limit, in words; None where it does not.

    It goes no further than the limit, follows no link, and passes over what cannot be read.
    """
    size = entries = 0
    folders = [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as listed:
            for entry in listed:
                with suppress(OSError):  # it may just have been removed
                    size += entry.stat(follow_symlinks=False).st_blocks * BLOCK
                    entries += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                if size > limit.size:
                    return f"{folder} takes more than {limit.size:,} bytes of disk"
                if entries > limit.entries:
                    return f"{folder} holds more than {limit.entries:,} files and folders"
    return None


class FolderWatch:
    """Looks at a folder from time to time, in a thread, until it exceeds its limit."""

    def __init__(self, folder: Path, limit: Limit, *, seconds: float = LOOK_SECONDS) -> None:
        """Describe the watch; nothing starts."""
        self._folder, self._limit, self._seconds = folder, limit, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="folder-watch", daemon=True)
        self.excess: str | None = None
        """How the folder exceeds its limit, once it does."""

    @property
    def is_alive(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; a look that has begun ends by itself."""
        self._over.set()

    def _work(self) -> None:
        pause = self._seconds
        while not self._over.wait(pause):
            began = time.monotonic()
            self.excess = excess(self._folder, self._limit)
            if self.excess is not None:
                logger.warning("%s", self.excess)
                return
            pause = max(self._seconds, PAUSE_FACTOR * (time.monotonic() - began))
