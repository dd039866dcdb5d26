"""Times between two logged steps: steps, waits for data and for other ranks, and pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from trainer.metrics.collective_waits import CollectiveWaits, HostWaits
from trainer.metrics.stragglers import RankSeconds


@dataclass
class _Span:
    """Number of steps, and seconds, since a start time."""

    started: float
    data_seconds: float = 0.0
    paused_seconds: float = 0.0
    steps: int = 0


class StepTimers:
    """Times of steps, both since the last logged line and since the last comparison of ranks.

    On a GPU the host runs ahead of the device, so call `values` only right after the host has
    waited for the device. The step times are then device times, and a wait for data reduces the
    compute rate only if the device was idle.
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
        self._waits = waits or HostWaits()
        self.restart()

    @property
    def comparable(self) -> bool:
        """Whether `of_rank` may now measure; frequent calls would cost too much time."""
        return self._waits.due

    def restart(self) -> None:
        """Reset all times, and start counting now."""
        self._restart_line()
        self.restart_comparison()

    def restart_comparison(self) -> None:
        """Restart the times that the next `of_rank` returns."""
        self._waits.read()
        self._waited_before = self._waits.seconds
        self._compared = _Span(self._clock())

    def _restart_line(self) -> None:
        self._line = _Span(self._clock())
        self._host_seconds = 0.0
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def _spans(self) -> tuple[_Span, _Span]:
        return self._line, self._compared

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
            started, paused = self._clock(), self._line.paused_seconds
            yield
            paused = self._line.paused_seconds - paused  # the update may wait for a save
            self._host_seconds += self._clock() - started - paused
        for span in self._spans:
            span.steps += 1

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Count the time of this block as waiting for the next batch."""
        started = self._clock()
        yield
        seconds = self._clock() - started
        for span in self._spans:
            span.data_seconds += seconds

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Exclude the time of this block, such as a save or a validation, from the step time."""
        started, waited = self._clock(), self._waits.seconds
        yield
        seconds = self._clock() - started
        for span in self._spans:
            span.paused_seconds += seconds
        self._waited_before += self._waits.seconds - waited

    def of_rank(self) -> RankSeconds:
        """Return this rank's times since the last call or `restart_comparison`.

        The times cover all lines since waits were last read. Otherwise the times of one line would
        be compared with the waits of several lines.
        """
        self._waits.read()
        span, waited = self._compared, self._waits.seconds - self._waited_before
        wall = self._clock() - span.started - span.paused_seconds
        self._compared = _Span(self._clock())
        self._waited_before = self._waits.seconds
        return RankSeconds(
            compute=max(wall - span.data_seconds - waited, 0.0) / span.steps,
            data=span.data_seconds / span.steps,
            wait=waited / span.steps,
        )

    def values(self) -> dict[str, float]:
        """Return rates and mean times for the steps since the last call or `restart`."""
        line = self._line
        wall = self._clock() - line.started
        on_device = sum(begun.elapsed_time(ended) for begun, ended in self._marks) / 1000
        tokens = self._tokens_per_step * line.steps / self._devices
        values = {
            "perf/tokens_per_second_per_device": tokens / wall,
            "perf/compute_tokens_per_second_per_device": tokens / (self._host_seconds + on_device),
            "perf/step_seconds": (wall - line.paused_seconds) / line.steps,
            "perf/data_seconds": line.data_seconds / line.steps,
            "perf/data_share": line.data_seconds / wall,
        }
        self._restart_line()
        return values
