"""The detached process of one attempt: supervises it, or speaks for who did."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from worker.launchers.torchrun import TRAINER
from worker.node.files import read_record
from worker.node.node_store import AttemptLock, LaunchRecord, NodeStore, WorkerRun, identity_of
from worker.node.process_tree import NotEndedError
from worker.supervisor.orphan_report import own_identity, speak_for
from worker.supervisor.supervise import Supervisor

logger = logging.getLogger(__name__)


def see_to(folder: Path, lock_fd: int, *, trainer: Sequence[str] = TRAINER) -> int:
    """See to the attempt of a run directory to its end; returns the exit code of this process.

    An attempt has one supervisor: where a former one wrote its identity, this process launches
    nothing but reports in its place.

    Args:
        folder: the run directory.
        lock_fd: the lock of the attempt, already taken.
        trainer: command that trains; the run directory is appended.
    """
    os.set_inheritable(lock_fd, False)
    run = WorkerRun(folder)
    launch = read_record(run.launch, LaunchRecord)
    if launch is None:
        logger.error("%s is missing or no launch record", run.launch)
        return 1
    path = NodeStore(Path(launch.data_dir)).attempts / launch.attempt_id
    with AttemptLock(path, lock_fd) as lock:
        try:
            over = _see_to(run, trainer)
        except NotEndedError:
            # Neither reported as gone nor forgotten: the slots are held as long as it lives.
            logger.exception("the attempt is not over")
            over = False
        except Exception:
            # Nobody could do better: the worker finds the attempt without anybody and says so.
            logger.exception("the attempt cannot be reported")
            over = True
        if over:
            lock.forget()
    return 0


def _see_to(run: WorkerRun, trainer: Sequence[str]) -> bool:
    predecessor = identity_of(run)
    if predecessor is not None:
        return speak_for(run, predecessor)
    try:
        supervisor = Supervisor(run, trainer=trainer)
    except (OSError, ValueError):
        logger.exception("the attempt cannot be launched")
        return speak_for(run, own_identity())
    supervisor.supervise()
    return supervisor.over
