"""Removes run directories of ended jobs whose attempts have ended on this node.

Also removes folders of operations; after a failure they stay for as many days as run directories.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from trainyard.base.ids import is_id
from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.worker_messages import MAX_ASKED, PROTOCOL, EndedJobsRequest
from worker.api import ServerAway, WorkerApi
from worker.node.folder_usage import remove_tree
from worker.node.node_store import NodeStore, WorkerRun
from worker.registration import own_token

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 600.0
MAX_REMOVED = 50
"""Maximum number of run directories removed per round."""
REMOVED = ".removed-"
"""Name prefix of a run directory during its removal."""
DAY_SECONDS = 86_400.0


class RunCleaner(threading.Thread):
    """The thread that removes run directories, a limited number per round.

    A directory stays while its attempt's lock exists, because a supervisor or a reporter still has
    data to deliver. The directory also stays until its job has ended, and for `days` days after the
    end of its attempt. A resume does not need the directory, because checkpoints are in a storage
    root.

    Args:
        store: files of the node.
        node: name of the node.
        days: days for which a run directory stays after the end of its attempt.
        connect: returns a connection to the server that uses the token of the node.
    """

    def __init__(
        self,
        store: NodeStore,
        node: str,
        *,
        days: float,
        connect: Callable[[], WorkerApi] | None = None,
    ) -> None:
        super().__init__(name="run-cleaner", daemon=True)
        self._store = store
        self._node = node
        self._seconds = days * DAY_SECONDS
        self._connect = self._connected if connect is None else connect
        self._stopping = threading.Event()

    def run(self) -> None:
        """Clean until `stop`."""
        while not self._stopping.wait(PAUSE_SECONDS):
            try:
                self.clean()
            except (ApiError, ServerAway) as error:  # also raised if the server lacks this call
                logger.info("no run directory is removed: %s", error)
            except Exception:
                logger.exception("run directories could not be removed")

    def stop(self) -> None:
        """End the thread before its next round."""
        self._stopping.set()

    def clean(self) -> int:
        """Remove the folders that are due; return the number of removed run directories.

        Raises:
            ServerAway, ApiError: the server does not return which jobs have ended.
            OSError: the lock of the node's user ids cannot be opened.
        """
        for path in _entries(self._store.runs):
            # Left by a round that was interrupted or failed.
            if path.name.startswith(REMOVED) and not remove_tree(path):
                logger.warning("%s is not removed; tried again in %g s", path, PAUSE_SECONDS)
        self._remove_operations()
        old = [run for run in self._runs() if self._is_old(run)]
        ended = self._ended({run.root.parent.name for run in old})
        removed = 0
        for run in old:
            if removed == MAX_REMOVED or self._stopping.is_set():
                break
            if run.root.parent.name in ended:
                removed += self._remove(run)
        return removed

    def _remove_operations(self) -> None:
        """Remove each operation's folder if nothing was written to it for `days` days.

        Such a folder is not in use: a running command writes its progress, and a supervisor without
        a server gives up earlier.
        """
        for operation in _entries(self._store.data_dir / "operations"):
            for path in _entries(operation):
                written = [_changed_at(each) for each in (path, *path.glob("*"))]
                if time.time() - max(written) >= self._seconds and remove_tree(path):
                    logger.info("%s is removed", path)
            with suppress(OSError):  # the folder holds other tries
                operation.rmdir()

    def _runs(self) -> Iterator[WorkerRun]:
        for job in _entries(self._store.runs):
            if is_id(job.name):  # the server counts other names as unknown, or refuses them
                for path in _entries(job):
                    if path.name.isdecimal():
                        yield WorkerRun(path)

    def _is_old(self, run: WorkerRun) -> bool:
        """Return whether the attempt ended more than `days` days ago, according to its files."""
        ends = [_changed_at(Path(path)) for path in (run.root, run.launch, run.exit, run.over)]
        return time.time() - max(ends) >= self._seconds

    def _ended(self, jobs: Collection[str]) -> set[str]:
        ended: set[str] = set()
        listed = sorted(jobs)
        for start in range(0, len(listed), MAX_ASKED):
            part = tuple(listed[start : start + MAX_ASKED])
            with self._connect() as api:
                request = EndedJobsRequest(protocol=PROTOCOL, node=self._node, jobs=part)
                ended |= set(api.ended_jobs(request).ended) & set(part)
        return ended

    def _remove(self, run: WorkerRun) -> bool:
        """Remove a run directory, unless its attempt is being launched or has not ended."""
        away = self._store.runs / f"{REMOVED}{secrets.token_hex(8)}"
        with self._store.users():  # excludes a launch between its run directory and its lock
            held = [each.root for each in map(self._store.run_of, self._store.live()) if each]
            if run.root in held:
                return False
            try:
                run.root.rename(away)
            except OSError as error:
                logger.warning("%s is not removed: %s", run.root, error)
                return False
            with suppress(OSError):  # other run directories are in the folder
                run.root.parent.rmdir()
        if gone := remove_tree(away):
            logger.info("%s is removed", run.root)
        return gone

    def _connected(self) -> WorkerApi:
        store = self._store
        return WorkerApi(store.server_url or "", own_token(store), ca_file=store.server_ca)


def _entries(folder: Path) -> list[Path]:
    """Return the subfolders of a folder, without links, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            found = [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(found)


def _changed_at(path: Path) -> float:
    """Return a file's modification time; 0 for another user's file, which may have any time."""
    try:
        found = path.lstat()
    except OSError:
        return 0.0
    return found.st_mtime if found.st_uid == os.geteuid() else 0.0
