"""The process from which tests fork others: it has imported what they need.

A process of pytest has one forkserver, so one list names the modules for all folders of tests. It
counts only where this module is imported before the first fork.
"""

import multiprocessing
from multiprocessing.context import ForkServerProcess

__all__ = ["FORKSERVER", "ForkServerProcess", "preload"]

FORKSERVER = multiprocessing.get_context("forkserver")
PRELOADED = ["tests.worker.run_detached", "tests.trainer.preloaded"]
FORKSERVER.set_forkserver_preload(PRELOADED)


def preload(module: str) -> None:
    """Add a module to the list; the conftest of a folder calls this when it is collected."""
    if module not in PRELOADED:
        PRELOADED.insert(0, module)
        FORKSERVER.set_forkserver_preload(PRELOADED)
