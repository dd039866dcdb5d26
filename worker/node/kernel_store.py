"""The node's archives of compiled kernels: one file a key, which the worker alone writes.

torch loads compiled kernels as code, so a job that brings code must not write what another job
loads. Ranks write archives into their run directory; the supervisor of a job without code copies
them into the node's folder.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from trainyard.protocol.node_samples import DATA_DIR_BYTES
from trainyard.run.atomic import replacing
from trainyard.run.kernel_archive import LARGEST_ARCHIVE, is_archive_name
from worker.node.files import open_regular
from worker.node.folder_usage import evict, remove_tree
from worker.node.node_store import WorkerRun

logger = logging.getLogger(__name__)

STORE_BYTES = 2 * 2**30
"""Most bytes of the archives on a node; those that were used least recently go first."""
LEFT_SECONDS = 3600.0
"""Age at which a half-written archive was left by a supervisor that was killed."""


class KernelStore:
    """The kernels of one attempt: its archive for the node, and the caches in its run directory."""

    def __init__(self, run: WorkerRun, folder: str | None) -> None:
        """Look at nothing yet.

        Args:
            run: the run directory.
            folder: that of the node's archives; None for a job that brings code.
        """
        self._run = run
        self._folder = None if folder is None else Path(folder)
        self._done = False

    def look(self) -> None:
        """Keep the archive of the attempt, once its ranks have written it after their first step.

        A failure is logged: the next attempt compiles again.
        """
        if self._folder is None or self._done:
            return
        try:
            with os.scandir(self._run.kernel_archives) as entries:
                name = next((each.name for each in entries if is_archive_name(each.name)), None)
        except OSError:
            return
        if name is not None:
            self._done = True
            try:
                self._keep(self._run.kernel_archives / name, self._folder)
            except OSError as error:
                logger.warning("compiled kernels are not kept: %s", error)

    def close(self) -> None:
        """Keep what no look has seen, and remove the attempt's own caches; no rank is left."""
        self.look()
        for folder in (self._run.kernels, self._run.kernel_archives):
            if os.path.lexists(folder):
                remove_tree(Path(folder))

    def _keep(self, path: Path, folder: Path) -> None:
        kept = folder / path.name
        with open_regular(path, owner=self._run.writer) as archive:
            size = os.fstat(archive.fileno()).st_size
            if not size:  # the ranks have found all their kernels in the archive
                with suppress(FileNotFoundError):
                    os.utime(kept)
                return
            _remove_leftovers(folder)
            room = shutil.disk_usage(folder).free - DATA_DIR_BYTES
            if size > min(LARGEST_ARCHIVE, room):
                logger.info("compiled kernels of %d bytes are not kept: no room", size)
                return
            with replacing(kept) as file:
                os.fchmod(file.fileno(), 0o644)  # ranks of any user read it
                shutil.copyfileobj(archive, file)
        evict(folder, but=kept, suffix=".zip", most=STORE_BYTES)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(".*.part"):
        with suppress(FileNotFoundError):  # its supervisor has just finished it
            if time.time() - path.lstat().st_mtime > LEFT_SECONDS:
                path.unlink()
