"""Profiles and memory snapshots of a few steps of a running job, on request."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from trainer.distributed import Ranks
from trainer.metrics.memory_report import HISTORY_ENTRIES, dump_snapshot, history_runs
from trainyard.run.directory import RunDirectory

logger = logging.getLogger("trainer")


@dataclass(frozen=True)
class Asked:
    """What all ranks agreed to record."""

    memory: bool
    """A snapshot of the memory; a profile otherwise."""
    steps: int
    """Steps to record."""
    every_rank: bool
    """Whether every rank records; global rank 0 alone otherwise."""


class _Recorder(Protocol):
    """Records steps on one rank."""

    def stop(self, name: str) -> Path:
        """End the recording, write it into a file of this name, and return that."""
        ...


class Profiler:
    """At most one recording at a time; every rank calls `step_done` after each step.

    All ranks begin and end it after the same step. Nothing is waited for in between, but the
    profiler itself slows the steps that it sees.
    """

    def __init__(self, directory: RunDirectory, ranks: Ranks) -> None:
        self._directory = directory
        self._ranks = ranks
        self._asked: Asked | None = None
        self._first_step = 0
        self._recorder: _Recorder | None = None

    def is_due(self, step: int, asked: Asked | None) -> bool:
        """Return whether a recording begins or ends after this step."""
        return asked is not None or step == self._last_step

    def step_done(self, step: int, asked: Asked | None) -> tuple[bool, str] | None:
        """Begin what is asked for, or end what is due; call it on all ranks.

        Returns:
            What became of a recording that has ended, or could not begin: success and message.
        """
        if self._asked is not None:
            return self._end(step) if step == self._last_step else None
        if asked is None:
            return None
        if asked.memory and self._ranks.device.type != "cuda":
            return False, "a memory snapshot shows the allocator of a GPU; this job runs on CPUs"
        self._asked, self._first_step = asked, step + 1
        if self._records:
            made = _Memory(self._directory) if asked.memory else _Profile(self._directory)
            self._recorder = made
        return None

    def close(self, step: int) -> tuple[bool, str] | None:
        """End a recording that the end of training cuts short."""
        return None if self._asked is None else self._end(step)

    @property
    def _last_step(self) -> int:
        return self._first_step + self._asked.steps - 1 if self._asked else -1

    @property
    def _records(self) -> bool:
        return self._asked is not None and (self._asked.every_rank or self._ranks.leads)

    def _end(self, step: int) -> tuple[bool, str]:
        assert self._asked is not None
        asked, recorder = self._asked, self._recorder
        steps = f"{self._first_step}-{step}"
        self._asked = self._recorder = None
        if step < self._first_step:
            return False, "training ended before the first step to record"
        written = ""
        try:
            if recorder is not None:
                written = str(recorder.stop(f"steps-{steps}.rank-{self._ranks.rank}"))
        except (OSError, RuntimeError) as error:  # it must not end the training
            logger.exception("the recording could not be written")
            return self._told(asked, f"rank {self._ranks.rank}: {error}", steps, failed=True)
        return self._told(asked, written, steps, failed=False)

    def _told(self, asked: Asked, said: str, steps: str, *, failed: bool) -> tuple[bool, str]:
        """Return what all ranks wrote, or the first failure among them."""
        if not asked.every_rank:
            return not failed, said if failed else f"steps {steps} in {said}"
        everywhere: list[tuple[bool, str]] = [(False, "")] * self._ranks.world_size
        dist.all_gather_object(everywhere, (failed, said), group=self._ranks.cpu_group)
        failures = [text for bad, text in everywhere if bad]
        if failures:
            return False, failures[0]
        first, last = everywhere[0][1], len(everywhere) - 1
        others = f", and up to rank-{last} beside it on each rank's node" if last else ""
        return True, f"steps {steps} in {first}{others}"


class _Profile:
    """What torch.profiler sees of this process and its GPU, as a Chrome trace."""

    def __init__(self, directory: RunDirectory) -> None:
        self._folder = Path(directory.profiles)
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profiler: AbstractContextManager[profile] = profile(activities=activities)
        self._seen = self._profiler.__enter__()

    def stop(self, name: str) -> Path:
        self._profiler.__exit__(None, None, None)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{name}.json.gz"
        self._seen.export_chrome_trace(str(path))
        return path


class _Memory:
    """The allocator of this rank's GPU, with its history over the steps."""

    def __init__(self, directory: RunDirectory) -> None:
        self._folder = Path(directory.snapshots)
        self._for_the_job = history_runs()
        if not self._for_the_job:
            torch.cuda.memory._record_memory_history(max_entries=HISTORY_ENTRIES)

    def stop(self, name: str) -> Path:
        try:
            return dump_snapshot(self._folder, name)
        finally:
            if not self._for_the_job:
                torch.cuda.memory._record_memory_history(enabled=None)
