"""The detached process of one attempt: its supervisor, or the reporter for one that died."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from worker.launchers.base import LauncherFactory
from worker.node.files import read_record
from worker.node.node_store import AttemptLock, LaunchRecord, NodeStore, WorkerRun, identity_of
from worker.node.process_tree import NotEndedError
from worker.supervisor.orphan_report import own_identity, report_orphan
from worker.supervisor.supervise import Supervisor

logger = logging.getLogger(__name__)


def run_detached(folder: Path, lock_fd: int, launcher: LauncherFactory) -> int:
    """Supervise or report the attempt of a run directory; returns the exit code of this process.

    An attempt has one supervisor: where a former one wrote its identity, this process launches
    nothing but reports in its place.

    Args:
        folder: the run directory.
        lock_fd: the lock of the attempt, already taken.
        launcher: makes the launcher of the ranks.
    """
    os.set_inheritable(lock_fd, False)  # no rank may keep the lock of a supervisor that died
    run = WorkerRun(folder)
    launch = read_record(run.launch, LaunchRecord)
    if launch is None:
        logger.error("%s is missing or no launch record", run.launch)
        return 1
    path = NodeStore(Path(launch.data_dir)).attempts / launch.attempt_id
    with AttemptLock(path, lock_fd) as lock:
        try:
            over = _supervise_or_report(run, launcher)
        except NotEndedError:
            # Neither reported as gone nor forgotten: the slots are held as long as it lives.
            logger.exception("the attempt is not over")
            over = False
        except Exception:
            # A later process would fail too: the worker reports that the attempt has no process.
            logger.exception("the attempt cannot be reported")
            over = True
        if over:
            lock.forget()
    return 0


def _supervise_or_report(run: WorkerRun, launcher: LauncherFactory) -> bool:
    predecessor = identity_of(run)
    if predecessor is not None:
        return report_orphan(run, predecessor, launcher)
    try:
        supervisor = Supervisor(run, launcher)
    except (OSError, ValueError):
        logger.exception("the attempt cannot be launched")
        return report_orphan(run, own_identity(), launcher)
    supervisor.supervise()
    return supervisor.over
