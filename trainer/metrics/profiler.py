"""Profiles and memory snapshots of some steps of a running job, on request."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from trainer.distributed import Ranks
from trainer.metrics.memory_report import HISTORY_ENTRIES, dump_snapshot, history_runs
from trainyard.run.directory import RunDirectory

logger = logging.getLogger("trainer")


@dataclass(frozen=True)
class ProfileRequest:
    """A profile request on which all ranks have agreed."""

    memory: bool
    """Whether to record a memory snapshot instead of a profile."""
    steps: int
    """Number of steps to record."""
    every_rank: bool
    """Whether every rank records; otherwise only global rank 0."""


class Profiler:
    """Makes one recording at a time; every rank calls `step_done` after each step.

    All ranks record the same steps, and no rank waits for others during the recording. The profiler
    slows down the recorded steps.
    """

    def __init__(self, directory: RunDirectory, ranks: Ranks) -> None:
        self._directory = directory
        self._ranks = ranks
        self._request: ProfileRequest | None = None
        self._first_step = 0
        self._recording: _Profile | _MemorySnapshot | None = None

    def step_done(self, step: int, request: ProfileRequest | None) -> tuple[bool, str] | None:
        """Start or end a recording if one is due; the end with `every_rank` is a collective.

        Returns:
            Success and message of a recording that has ended or cannot start; otherwise None.
        """
        if self._request is not None:
            return self._end(step) if step == self._last_step else None
        if request is None:
            return None
        if request.memory and self._ranks.device.type != "cuda":
            return False, "a memory snapshot shows the allocator of a GPU; this job runs on CPUs"
        self._request, self._first_step = request, step + 1
        if request.every_rank or self._ranks.leads:
            kind = _MemorySnapshot if request.memory else _Profile
            self._recording = kind(self._directory)
        return None

    def close(self, step: int) -> tuple[bool, str] | None:
        """End a recording because the training ends."""
        return None if self._request is None else self._end(step)

    @property
    def _last_step(self) -> int:
        return self._first_step + self._request.steps - 1 if self._request else -1

    def _end(self, step: int) -> tuple[bool, str]:
        assert self._request is not None
        every_rank, recording = self._request.every_rank, self._recording
        steps = f"{self._first_step}-{step}"
        self._request = self._recording = None
        if step < self._first_step:
            return False, "training ended before the first step to record"
        failed, text = False, ""
        try:
            if recording is not None:
                text = str(recording.stop(f"steps-{steps}.rank-{self._ranks.rank}"))
        except (OSError, RuntimeError) as error:  # a failed recording must not end training
            logger.exception("the recording could not be written")
            failed, text = True, f"rank {self._ranks.rank}: {error}"
        if not every_rank:
            return not failed, text if failed else f"steps {steps} in {text}"
        everywhere: list[tuple[bool, str]] = [(False, "")] * self._ranks.world_size
        dist.all_gather_object(everywhere, (failed, text), group=self._ranks.cpu_group)
        failures = [text for bad, text in everywhere if bad]
        if failures:
            return False, failures[0]
        first, last = everywhere[0][1], len(everywhere) - 1
        others = f", and up to rank-{last} in the same folder of each rank's node" if last else ""
        return True, f"steps {steps} in {first}{others}"


class _Profile:
    """A trace of this process and its GPU by torch.profiler, in Chrome's trace format."""

    def __init__(self, directory: RunDirectory) -> None:
        self._folder = directory.profiles
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profiler: AbstractContextManager[profile] = profile(activities=activities)
        self._seen = self._profiler.__enter__()

    def stop(self, name: str) -> Path:
        """End the recording; write it to a file `name` plus suffix; return the path of the file."""
        self._profiler.__exit__(None, None, None)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{name}.json.gz"
        self._seen.export_chrome_trace(str(path))
        return path


class _MemorySnapshot:
    """A snapshot of this GPU's caching allocator, with its history over the steps."""

    def __init__(self, directory: RunDirectory) -> None:
        self._folder = directory.snapshots
        self._always_recorded = history_runs()
        if not self._always_recorded:
            torch.cuda.memory._record_memory_history(max_entries=HISTORY_ENTRIES)

    def stop(self, name: str) -> Path:
        """As for `_Profile.stop`."""
        try:
            return dump_snapshot(self._folder, name)
        finally:
            if not self._always_recorded:
                torch.cuda.memory._record_memory_history(enabled=None)
