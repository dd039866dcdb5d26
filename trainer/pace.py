"""How fast the run goes, and what memory it took."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Pace:
    """Times of the steps since the last look; saves are left out of them.

    On a GPU the host runs ahead of the device, so look only where it has just waited for it.
    """

    def __init__(
        self, *, tokens_per_step: int, devices: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._tokens_per_step = tokens_per_step
        self._devices = devices
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Forget what was measured, and start counting now."""
        self._started = self._clock()
        self._data_seconds = 0.0
        self._steps = 0

    def step_done(self) -> None:
        """Count a completed step."""
        self._steps += 1

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Count the time of this block as waiting for the next batch."""
        started = self._clock()
        yield
        self._data_seconds += self._clock() - started

    def values(self) -> dict[str, float]:
        """Return means over the steps since the last look, and start counting anew."""
        step_seconds = (self._clock() - self._started) / self._steps
        values = {
            "perf/tokens_per_second_per_device": self._tokens_per_step
            / (step_seconds * self._devices),
            "perf/step_seconds": step_seconds,
            "perf/data_seconds": self._data_seconds / self._steps,
        }
        self.restart()
        return values


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return the largest amount of memory that this rank has held so far."""
    if device.type == "cuda":
        reserved = torch.cuda.max_memory_reserved(device)
        return {"memory/peak_reserved_gib": reserved / 2**30}
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"memory/peak_rss_gib": kibibytes / 2**20}
