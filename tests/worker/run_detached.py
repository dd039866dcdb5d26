"""`python -m worker supervise` without a fork, with another launcher or with a stand-in.

run_detached.py RUN LOCK_FD LAUNCHER [TRAINER COMMAND]
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

from tests.worker.launchers.process_launcher import WARM, launcher_of, warm_launcher
from worker.launchers.rank_environment import TRAINER
from worker.supervisor.supervise import run_detached

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    folder, lock_fd, kind, *trainer = sys.argv[1:]
    make = warm_launcher if kind == WARM else partial(launcher_of, kind)
    launcher = make(trainer or TRAINER)
    run_detached(Path(folder), int(lock_fd), launcher)
