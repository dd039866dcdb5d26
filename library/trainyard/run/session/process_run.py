"""The single run of this process."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import SupportsFloat

from trainyard.run.session.process_place import ProcessPlace
from trainyard.run.session.run_facts import items_of
from trainyard.run.session.script_run import RUN_VARIABLE, Run

OWNER_VARIABLE = "TRAINYARD_RANK_PROCESS"
"""Environment variable by which a rank identifies itself to its child processes, as
`<pid>:<rank>/<size>`."""

_current: Run | None = None
_lock = threading.Lock()


def init(*, config: object = None, tags: Iterable[str] = ()) -> Run:
    """Return the run of this process; every call returns the same run.

    On rank 0, `config` and `tags` become facts of the job. The values of a mapping, or of an
    object such as argparse's namespace, are set in `Run.config`. The tags are added to the tags
    of the job.

    Without the variable `TRAINYARD_RUN`, calls of the run store only checkpoints. Rank and size
    come from torchrun's `RANK`, `WORLD_SIZE` and `LOCAL_RANK`, otherwise from `NODE_RANK` and
    `NNODES`. Calls store nothing in a process that a rank has created by `multiprocessing`, with
    any start method, because `spawn` and `forkserver` import the script again.

    Args:
        config: values by name.
        tags: tags by which lists of jobs can be filtered.

    Raises:
        ValueError: one of these variables has an illegal value.
        TypeError: `config` does not consist of named values.
    """
    run = _run()
    if config is not None:
        run.config.update(items_of(config))
    run.add_tags(*((tags,) if isinstance(tags, str) else tags))
    return run


def _run() -> Run:
    global _current
    with _lock:
        if _current is None:
            directory = os.environ.get(RUN_VARIABLE)
            place = ProcessPlace.of(os.environ)
            run = Run(Path(directory) if directory else None, place, owner=_owner(place))
            atexit.register(run.close)
            _current = run
        return _current


def _owner(place: ProcessPlace) -> int:
    """Return the id of the process that writes for a rank: this process, or its parent rank."""
    own = f":{place.rank}/{place.world_size}"
    pid, found, numbers = os.environ.get(OWNER_VARIABLE, "").partition(":")
    if pid.isascii() and pid.isdecimal() and found + numbers == own and _is_made():
        return int(pid)
    os.environ[OWNER_VARIABLE] = f"{os.getpid()}{own}"
    return os.getpid()


def _is_made() -> bool:
    """Return whether `multiprocessing` has created this process."""
    # Every such process has imported the module; importing it here would take 10 ms.
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # The parent is known only once the script is imported; before, `_inheriting` is set.
    importing = getattr(process.current_process(), "_inheriting", False)
    return bool(importing) or process.parent_process() is not None


def log(values: Mapping[str, SupportsFloat], *, step: int, per_rank: bool = False) -> None:
    """Log values of a step in this process, by `Run.log`."""
    _run().log(values, step=step, per_rank=per_rank)
