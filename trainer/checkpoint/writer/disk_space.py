"""Whether the storage has room for the checkpoints that a job is going to keep."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from trainer.errors import CheckpointError
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import TrainState
from trainyard.spec.auto import explicit
from trainyard.spec.checkpoint_rules import kept_for_good, most_kept, saves_to_come
from trainyard.spec.job import JobSpec


def check_room(folder: StoragePath, *, size: int, state: TrainState, spec: JobSpec) -> None:
    """Refuse a storage that will be full before the job ends.

    An object store has no such limit, or does not tell it: nothing is refused there.

    Args:
        folder: the first checkpoint, written already.
        size: its bytes; the others have as many.
        state: where the attempt begins.
        spec: the job, with the attempt's overrides.

    Raises:
        CheckpointError: with what is needed, what is free, and what to change.
    """
    if not isinstance(folder, Path):
        return
    more = most_kept(spec, step=state.step)
    free = shutil.disk_usage(folder).free
    if more * size <= free:
        return
    raise CheckpointError(
        f"{folder.parent} has {_gib(free)} free, but {more:,} more checkpoints of {_gib(size)} "
        f"are to be kept there ({_reason(spec)}), {_gib(more * size)} in all",
        path=str(folder.parent),
        remedy=_remedy(free // size, state, spec),
    )


def _reason(spec: JobSpec) -> str:
    section = spec.checkpoint
    keep = section.keep_latest_k
    kept = f"checkpoint.keep_latest_k = {keep}{'' if keep else ', which keeps all'}"
    if keep and section.keep_every_steps:
        kept += f", checkpoint.keep_every_steps = {section.keep_every_steps}"
    if keep and section.keep_best_k:
        kept += f", checkpoint.keep_best_k = {section.keep_best_k}"
    return f"{kept}, {_interval_given(spec)}"


def _interval_given(spec: JobSpec) -> str:
    section = spec.checkpoint
    by_steps = f"checkpoint.interval_steps = {section.interval_steps}"
    seconds = explicit(section.interval_seconds)
    return f"{by_steps}, checkpoint.interval_seconds = {seconds:g}" if seconds else by_steps


def _remedy(fitting: int, state: TrainState, spec: JobSpec) -> str:
    """Name what can be changed, each with a value that alone makes all of it fit."""
    section = spec.checkpoint
    ways = ["Free space", "take another checkpoint.root"]
    if fitting >= 1:
        interval = _interval(fitting, state, spec)
        by_steps_alone = not explicit(section.interval_seconds)
        if by_steps_alone and interval > explicit(section.interval_steps) > 0:
            ways.append(f"set checkpoint.interval_steps to {interval:,} or more")
    # `most_kept` counts one more than are kept, and those kept for good or as the best.
    others = kept_for_good(spec, step=state.step) + section.keep_best_k
    if (most := fitting - 1 - others) >= 1:
        ways.append(f"set checkpoint.keep_latest_k to {most:,} or less")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}."


def _interval(fitting: int, state: TrainState, spec: JobSpec) -> int:
    """Return steps between saves such that at most `fitting` come, the last one included."""
    left = spec.training.steps - state.step
    interval = math.ceil(left / fitting)
    if saves_to_come(interval, spec, step=state.step) <= fitting:
        return interval
    # In the middle of an interval one more multiple lies ahead than there are whole intervals.
    return math.ceil(left / (fitting - 1)) if fitting > 1 else spec.training.steps


def _gib(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB" if size >= 2**30 else f"{size / 2**20:,.3g} MiB"
