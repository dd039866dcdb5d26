"""The node's archives of compiled kernels: one file a key, which the worker alone writes.

torch loads compiled kernels as code, so no job may write what another job loads. Ranks write an
archive into their run directory. The supervisor copies it into the node's folder where the trainer
alone could write it: the job brings no code, no person has run a command in the attempt, and no
other job can write the files of this one.
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
from trainyard.run.kernel_archive import LARGEST_ARCHIVE
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

    def __init__(self, run: WorkerRun, archive: str | None) -> None:
        """Look at nothing yet.

        Args:
            run: the run directory.
            archive: that of the node which such attempts share; None where they share none.
        """
        self._run = run
        self._kept = None if archive is None else Path(archive)

    def keep_none(self) -> None:
        """Keep nothing from now on: another program than the trainer runs as its ranks do."""
        self._kept = None

    def look(self) -> None:
        """Keep the archive of the attempt, once its ranks have written it after their first step.

        A failure is logged: the next attempt compiles again.
        """
        if self._kept is None or not os.path.lexists(self._run.kernel_archive):
            return
        kept, self._kept = self._kept, None
        try:
            self._keep(kept)
        except OSError as error:
            logger.warning("compiled kernels are not kept: %s", error)

    def close(self) -> None:
        """Keep what no look has seen, and remove the attempt's own caches; no rank is left."""
        self.look()
        if os.path.lexists(self._run.kernels):
            remove_tree(Path(self._run.kernels))
        with suppress(OSError):
            Path(self._run.kernel_archive).unlink()

    def _keep(self, kept: Path) -> None:
        folder = kept.parent
        with open_regular(self._run.kernel_archive, owner=self._run.writer) as archive:
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
