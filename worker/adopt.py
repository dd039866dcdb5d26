"""Finds the attempts that an earlier worker launched, and reports those without a supervisor."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from worker.launch import start_supervisor
from worker.node.node_store import NodeStore, identity_of
from worker.node.process_identity import is_alive
from worker.node.process_tree import NotEndedError, ProcessTree

logger = logging.getLogger(__name__)


def adopt(node: NodeStore) -> tuple[str, ...]:
    """Return ids of attempts that have a supervisor, or a process that reports the attempt's end.

    A supervisor holds the lock of its attempt until it exits; the kernel then releases the lock. If
    the lock is free and no process has the recorded identity, this function starts a process that
    reports the end of the attempt.
    """
    return tuple(
        attempt_id
        for attempt_id in node.live()
        if node.run_of(attempt_id) is not None and _is_supervised(node, attempt_id)
    )


def prove_gone(node: NodeStore, expected: Iterable[str], *, name: str) -> tuple[str, ...]:
    """Return the ids in `expected` that have no supervisor on this node.

    The server counts all attempts in `expected` as claimed by this node. An attempt has no
    supervisor if its launch ended before the run directory existed, or if this node lost its data.
    Processes with the marks of such an attempt are ended first. If this process may not end one of
    them, the attempt is not returned, and the next heartbeat tries again.
    """
    gone = []
    for attempt_id in expected:
        if node.is_held(attempt_id) or node.run_of(attempt_id) is not None:
            continue
        logger.warning("attempt %s has no supervisor here", attempt_id)
        try:
            ProcessTree(attempt_id=attempt_id, node=name).end(descendants=False)
        except NotEndedError:
            logger.exception("attempt %s is not gone", attempt_id)
            continue
        if lock := node.lock(attempt_id):
            with lock:
                lock.forget()
        gone.append(attempt_id)
    return tuple(gone)


def _is_supervised(node: NodeStore, attempt_id: str) -> bool:
    """Return whether the attempt has a supervisor, or a process that reports the attempt's end.

    If the attempt has neither, start a process that reports the attempt's end, and return True. If
    the run directory of the attempt is missing, forget the attempt and return False.
    """
    lock = node.lock(attempt_id)
    if lock is None:  # another process holds the lock, or it was removed since the listing
        return node.is_held(attempt_id)
    with lock:
        run = lock.run
        assert run is not None
        identity = identity_of(run)
        if identity is not None and is_alive(identity):
            logger.error("%s runs without its lock; %s was removed", identity, lock.path)
            return True
        if not run.root.is_dir():
            logger.warning("%s was removed: attempt %s is forgotten", run.root, attempt_id)
            lock.forget()
            return False
        logger.warning(
            "the supervisor of attempt %s is gone; its end is reported",
            attempt_id,
        )
        start_supervisor(run, lock)
    return True
