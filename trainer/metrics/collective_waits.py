"""The time that this rank spends in collectives, measured without waiting for the device.

A collective ends when its last rank has arrived, so its duration includes the wait for other ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives

from trainer.metrics.flight_record import Recorded, recorded

READ_SECONDS = 10.0
"""Interval, in seconds, between reads of NCCL's flight recorder; a read takes about 15 ms."""


class CollectiveWaits(Protocol):
    """The time that a rank has spent in collectives."""

    seconds: float
    """Total time so far, in seconds."""

    @property
    def due(self) -> bool:
        """Whether `read` may now update the total; frequent reads would cost too much time."""

    def read(self) -> None:
        """Update `seconds`."""


class HostWaits:
    """On a CPU: the time for which this thread is blocked until collectives end.

    Waits in other threads are ignored: they belong to background saves, which delay no step.
    """

    due = True

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self.seconds = 0.0

    def read(self) -> None:
        """Do nothing, because `seconds` is always up to date."""

    def timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs `wait` and counts its time."""

        def timed_wait(*args: Any, **kwargs: Any) -> Any:
            # A graph under compilation must contain only the wait, not its measurement.
            if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
                return wait(*args, **kwargs)
            started = self._clock()
            try:
                return wait(*args, **kwargs)
            finally:
                self.seconds += self._clock() - started

        return timed_wait


class DeviceWaits:
    """On a GPU: the durations of collectives, which NCCL's watchdog measures with events.

    Collectives overlap with compute; see `stragglers.without_shared_wait`. If the ring lost entries
    since the last read, the time of the remaining entries is extrapolated to the whole interval.
    """

    def __init__(
        self,
        record: Callable[[], Sequence[Recorded]] = lambda: recorded(nccl=True),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._record = record
        self._clock = clock
        self._read_at = clock()
        self.seconds = 0.0

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last read."""
        return self._clock() - self._read_at >= READ_SECONDS

    def read(self) -> None:
        """Add the recorder's entries since the last read."""
        now = self._clock()
        ended = [one for one in self._record() if one.seconds is not None]
        fresh = [one for one in ended if one.started_at >= self._read_at]
        if fresh:
            begun = fresh[0].started_at if len(fresh) == len(ended) else self._read_at
            covered = max(now - begun, 1e-3)
            share = sum(one.seconds for one in fresh if one.seconds is not None) / covered
            self.seconds += share * (now - self._read_at)
        self._read_at = now


@contextmanager
def measured_waits(device: torch.device) -> Iterator[CollectiveWaits]:
    """Measure the collectives within the block.

    On a CPU, the functions by which Python waits for a collective are replaced. FSDP, pipelines and
    the trainer wait by `Work.wait`; tensor and context parallelism wait by `wait_tensor`. A
    compiled graph uses neither function, so its waits count as compute.
    """
    if device.type == "cuda":
        yield DeviceWaits()
        return
    waits = HostWaits()
    places = ((dist.Work, "wait"), (_functional_collectives, "wait_tensor"))
    former = [getattr(place, name) for place, name in places]
    for (place, name), wait in zip(places, former, strict=True):
        setattr(place, name, waits.timed(wait))
    try:
        yield waits
    finally:
        for (place, name), wait in zip(places, former, strict=True):
            setattr(place, name, wait)
