"""The time that this rank spends in collectives; no step waits for the device to measure it.

A collective ends when its last rank has arrived, so a rank spends there what it waits for others.
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
"""Pause between two reads of NCCL's flight recorder, each of which takes about 15 ms."""


class CollectiveWaits(Protocol):
    """What a rank has spent in collectives."""

    seconds: float
    """Total so far; it counts up."""

    @property
    def due(self) -> bool:
        """Whether `read` brings the total up to date at reasonable cost."""

    def read(self) -> None:
        """Bring `seconds` up to date."""


class HostWaits:
    """On a CPU: the time for which this thread is blocked until collectives have ended.

    Background saves wait for collectives in threads of their own, which delay no step.
    """

    due = True

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self.seconds = 0.0

    def read(self) -> None:
        """Nothing is left to be read."""

    def timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that waits and counts its time."""

        def timed_wait(*args: Any, **kwargs: Any) -> Any:
            # A graph that is being compiled contains the wait alone.
            if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
                return wait(*args, **kwargs)
            started = self._clock()
            try:
                return wait(*args, **kwargs)
            finally:
                self.seconds += self._clock() - started

        return timed_wait


class DeviceWaits:
    """On a GPU: the durations of collectives, which NCCL's watchdog measures by events.

    They overlap with compute, see `stragglers.without_shared_wait`. Where the ring does not reach
    back to the former read, the rest of the time counts in proportion.
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
        """Whether the last read is long enough ago."""
        return self._clock() - self._read_at >= READ_SECONDS

    def read(self) -> None:
        """Add what the recorder has since the last read."""
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
    """Measure the collectives of the block.

    On a CPU the functions through which Python waits for a collective are replaced meanwhile: FSDP,
    pipeline schedules and the trainer itself wait by `Work.wait`, tensor and context parallelism by
    `wait_tensor`. A compiled graph waits in neither, and its waits count as compute.
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
