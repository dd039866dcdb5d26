"""Times between two logged steps: in steps, waiting for data or other ranks, and pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trainer.metrics.collective_waits import CollectiveWaits, HostWaits
from trainer.metrics.stragglers import RankSeconds


class StepTimers:
    """Times since the last call of `values` or `restart`.

    On a GPU the host runs ahead of the device: call `values` only right after the host has waited
    for it. Step times are then measured by the device, so a wait for data reduces the compute rate
    only if the device was idle too.
    """

    def __init__(
        self,
        *,
        tokens_per_step: int,
        devices: int,
        device: torch.device,
        waits: CollectiveWaits | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tokens_per_step = tokens_per_step
        self._devices = devices
        self._on_gpu = device.type == "cuda"
        self._clock = clock
        self.waits = waits or HostWaits()
        """What the rank has spent in collectives, pauses included."""
        self.restart()

    def restart(self) -> None:
        """Reset all times and start counting now."""
        self._started = self._clock()
        self._data_seconds = 0.0
        self._paused_seconds = 0.0
        self._waited_before = self.waits.seconds
        self._host_seconds = 0.0
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count this block as one step: forward, backward and update, without loading data."""
        if self._on_gpu:
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            yield
            ended.record()
            self._marks.append((begun, ended))
        else:
            started = self._clock()
            yield
            self._host_seconds += self._clock() - started
        self._steps += 1

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Count the time of this block as waiting for the next batch."""
        started = self._clock()
        yield
        self._data_seconds += self._clock() - started

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Exclude the time of this block, a save or a validation, from the step time."""
        started, waited = self._clock(), self.waits.seconds
        yield
        self._paused_seconds += self._clock() - started
        self._waited_before += self.waits.seconds - waited

    def of_rank(self) -> RankSeconds:
        """Return how this rank spent the steps since the last call of `values`."""
        wall = self._clock() - self._started - self._paused_seconds
        waited = self.waits.seconds - self._waited_before
        return RankSeconds(
            compute=max(wall - self._data_seconds - waited, 0.0) / self._steps,
            data=self._data_seconds / self._steps,
            wait=waited / self._steps,
        )

    def values(self) -> dict[str, float]:
        """Return rates and mean times of the steps since the last call, and restart."""
        wall = self._clock() - self._started
        on_device = sum(begun.elapsed_time(ended) for begun, ended in self._marks) / 1000
        tokens = self._tokens_per_step * self._steps / self._devices
        values = {
            "perf/tokens_per_second_per_device": tokens / wall,
            "perf/compute_tokens_per_second_per_device": tokens / (self._host_seconds + on_device),
            "perf/step_seconds": (wall - self._paused_seconds) / self._steps,
            "perf/data_seconds": self._data_seconds / self._steps,
            "perf/data_share": self._data_seconds / wall,
        }
        self.restart()
        return values
