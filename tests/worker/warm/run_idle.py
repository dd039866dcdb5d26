"""`python -m worker idle` without a fork, with ranks that succeed in place of the trainer.

run_idle.py DATA_DIR WORKER_PID WORKER_START STATUS [PACKAGE whose code counts too]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from worker.launchers.warm import code_digest
from worker.node.node_store import NodeStore
from worker.warm.idle import IdleSettings, run_idle

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    data_dir, pid, start, status, *packages = sys.argv[1:]
    code_digest.PACKAGES = (*code_digest.PACKAGES, *packages)
    settings = IdleSettings(
        node="node-1",
        worker_pid=int(pid),
        worker_start=int(start),
        threads=1,
        status=int(status),
        module="tests.worker.warm.succeeding",
    )
    sys.exit(run_idle(NodeStore(Path(data_dir)), settings))
