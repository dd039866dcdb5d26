"""Whether the storage has room for the checkpoints that a job is going to keep."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from specs.checkpoint import TrainState
from specs.job import JobSpec
from trainer.errors import CheckpointError


def check_room(folder: Path, *, size: int, state: TrainState, spec: JobSpec) -> None:
    """Refuse a storage that will be full before the job ends.

    Args:
        folder: the first checkpoint, written already.
        size: its bytes; the others have as many.
        state: where the attempt begins.
        spec: the job, with the attempt's overrides.

    Raises:
        CheckpointError: with what is needed, what is free, and what to change.
    """
    more = checkpoints_to_come(state, spec)
    free = shutil.disk_usage(folder).free
    if more * size <= free:
        return
    raise CheckpointError(
        f"{folder.parent} has {_gib(free)} free, but {more:,} more checkpoints of {_gib(size)} "
        f"are to be kept there, {_gib(more * size)} in all: {_remedy(free // size, state, spec)}",
        path=str(folder.parent),
    )


def checkpoints_to_come(state: TrainState, spec: JobSpec) -> int:
    """Return how many more checkpoints the job will hold at once, by its steps.

    Saves by the clock and on request are not counted: nobody knows their number.
    """
    section, last = spec.checkpoint, spec.training.steps
    if state.step >= last:
        return 0
    interval = section.interval_steps
    by_steps = (last - 1) // interval - state.step // interval if interval else 0
    saves = by_steps + 1  # and the last one
    if not section.keep_latest_k:
        return saves
    every = section.keep_every_steps
    for_good = last // every - state.step // every if every else 0
    # One more than are kept: the oldest goes when the newest is there.
    return min(saves, section.keep_latest_k + 1 + for_good)


def _remedy(fitting: int, state: TrainState, spec: JobSpec) -> str:
    left = spec.training.steps - state.step
    free = "free space or take another checkpoint.root"
    if fitting < 1:
        return free
    interval = math.ceil(left / fitting)
    return f"{free}, or save every {interval:,} steps or more (checkpoint.interval_steps)"


def _gib(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB" if size >= 2**30 else f"{size / 2**20:,.3g} MiB"
