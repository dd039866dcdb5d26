"""The process from which tests fork others: it has imported what they need.

A process of pytest has one forkserver, so one list names the modules for all folders of tests. It
counts only where this module is imported before the first fork.
"""

import multiprocessing
from multiprocessing.context import ForkServerProcess

__all__ = ["FORKSERVER", "ForkServerProcess"]

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.worker.run_detached", "tests.trainer.preloaded"])
