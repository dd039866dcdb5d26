"""`python -m worker idle` without a fork, with ranks that succeed instead of the trainer.

run_idle.py DATA_DIR WORKER_PID WORKER_START STATUS MODULE SECONDS [PACKAGE that counts]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from worker.launchers.warm import code_digest
from worker.node.node_store import NodeStore
from worker.warm import idle

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    data_dir, pid, start, status, module, seconds, *packages = sys.argv[1:]
    code_digest.PACKAGES = (*code_digest.PACKAGES, *packages)
    idle.IMPORT_SECONDS = float(seconds)
    settings = idle.IdleSettings(int(pid), int(start), int(status), module=module)
    idle.run_idle(NodeStore(Path(data_dir)), settings)
