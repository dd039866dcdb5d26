"""`python -m worker supervise`, with a stand-in in the trainer's place and without a fork.

see_to.py RUN LOCK_FD [TRAINER COMMAND]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from worker.launchers.torchrun import TRAINER
from worker.supervisor.detached import see_to

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    folder, lock_fd, *trainer = sys.argv[1:]
    sys.exit(see_to(Path(folder), int(lock_fd), trainer=trainer or TRAINER))
