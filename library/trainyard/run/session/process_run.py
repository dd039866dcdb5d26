"""The one run of this process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

from trainyard.run.session.process_place import ProcessPlace
from trainyard.run.session.script_run import RUN_VARIABLE, Run

_current: Run | None = None
_lock = threading.Lock()


def init() -> Run:
    """Return the run of this process; the same at each call.

    Without the variable `TRAINYARD_RUN` its calls do nothing. Rank and size come from `RANK`,
    `WORLD_SIZE` and `LOCAL_RANK` of torchrun, else from `NODE_RANK` and `NNODES`.

    Raises:
        ValueError: one of these variables has no legal value.
    """
    global _current
    with _lock:
        if _current is None:
            directory = os.environ.get(RUN_VARIABLE)
            run = Run(Path(directory) if directory else None, ProcessPlace.of(os.environ))
            atexit.register(run.close)
            _current = run
        return _current


def log(values: Mapping[str, SupportsFloat], *, step: int, per_rank: bool = False) -> None:
    """Log values of a step by the run of this process: `Run.log`."""
    init().log(values, step=step, per_rank=per_rank)
