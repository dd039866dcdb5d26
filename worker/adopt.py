"""Takes care of the attempts that a former worker launched: alive, gone, or never begun."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from worker.launch import start_supervisor
from worker.node.node_store import NodeStore, identity_of
from worker.node.process_identity import is_alive
from worker.node.process_tree import end_marked

logger = logging.getLogger(__name__)


def adopt(node: NodeStore) -> tuple[str, ...]:
    """Return the ids of the attempts whose supervisor lives on this node.

    A supervisor is the kernel's to vouch for: it holds the lock of its attempt as long as it lives,
    and a worker that starts anew finds it so. Where the lock is free and no process of the recorded
    identity runs, the supervisor is gone; another one is started to report how that ended.
    """
    return tuple(
        attempt_id
        for attempt_id in node.live()
        if node.run_of(attempt_id) is not None and _is_seen_to(node, attempt_id)
    )


def prove_gone(node: NodeStore, expected: Iterable[str], *, name: str) -> tuple[str, ...]:
    """Return those of the attempts that the server holds claimed here which nobody sees to.

    The launch that claimed them ended before it had a run directory, or this node lost its data.
    What an earlier life of them may have left behind is ended first.
    """
    gone = []
    for attempt_id in expected:
        if node.is_held(attempt_id) or node.run_of(attempt_id) is not None:
            continue
        logger.warning("attempt %s has no supervisor here", attempt_id)
        end_marked(attempt_id, node=name)
        if lock := node.lock(attempt_id):
            with lock:
                lock.forget()
        gone.append(attempt_id)
    return tuple(gone)


def _is_seen_to(node: NodeStore, attempt_id: str) -> bool:
    """Return whether a supervisor lives, having started one where it had gone."""
    lock = node.lock(attempt_id)
    if lock is None:  # held, or over just now
        return node.is_held(attempt_id)
    with lock:
        run = lock.run
        assert run is not None
        identity = identity_of(run)
        if identity is not None and is_alive(identity):
            logger.error("%s runs without its lock; somebody removed %s", identity, lock.path)
            return True
        if not run.root.is_dir():
            logger.warning("%s was removed: attempt %s is forgotten", run.root, attempt_id)
            lock.forget()
            return False
        logger.warning("the supervisor of attempt %s is gone; reporting in its place", attempt_id)
        start_supervisor(run, lock)
    return True
