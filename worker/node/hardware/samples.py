"""Samples of the node for heartbeats, taken by threads, because a driver may hang."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from trainyard.protocol.node_samples import (
    DATA_DIR,
    MAX_DISKS,
    DiskSample,
    HostSample,
    NodeSample,
)
from trainyard.spec.storage_uri import is_object_store
from worker.node.cgroup import cgroup_limits
from worker.node.hardware.accelerators import Accelerators
from worker.node.hardware.foreign import Supervisors, without_own

logger = logging.getLogger(__name__)

OVERDUE_SECONDS = 30.0
"""Time, in seconds, after which an unfinished call counts as a problem of the node."""

Found = TypeVar("Found")


class Probe(threading.Thread, Generic[Found]):
    """A thread that calls one function repeatedly, and keeps its last result.

    If the function hangs in a driver or on a network file system, only this thread hangs.
    """

    def __init__(
        self,
        what: str,
        call: Callable[[], Found],
        *,
        seconds: float,
        overdue_seconds: float = OVERDUE_SECONDS,
    ) -> None:
        """Describe the probe; `start` starts the calls.

        Args:
            what: name of the samples, for error messages.
            call: function that takes one sample.
            seconds: pause between two samples, in seconds.
            overdue_seconds: time after which a call counts as hung, in seconds.
        """
        super().__init__(name=f"probe of {what}", daemon=True)
        self._what = what
        self._call = call
        self._seconds = seconds
        self._overdue_seconds = overdue_seconds
        self._found: Found | None = None
        self._error: str | None = None
        self._calling_since = time.monotonic()

    def run(self) -> None:
        """Sample until the process ends."""
        while True:
            self._calling_since = time.monotonic()
            try:
                self._found, error = self._call(), None
            except Exception as problem:  # noqa: BLE001 - it goes to the server with the heartbeat
                self._found, error = None, _shown(f"{self._what} cannot be sampled: {problem}")
            if error is not None and error != self._error:
                logger.warning(error)
            self._error = error
            time.sleep(self._seconds)

    def poll(self) -> tuple[Found | None, str | None]:
        """Return the last sample, or the reason for its absence; never wait.

        During a hung call no sample is returned, because the last sample is outdated.
        """
        silent = time.monotonic() - self._calling_since - self._seconds
        if silent > self._overdue_seconds:
            return None, f"{self._what} have not answered for {silent:.0f} s"
        return self._found, self._error


class Sampler:
    """Takes the samples of a node, for its accelerators, its disks and the host."""

    def __init__(
        self,
        accelerators: Accelerators | None,
        folders: Mapping[str, Path],
        *,
        seconds: float,
        overdue_seconds: float = OVERDUE_SECONDS,
        supervisors: Supervisors = tuple,
    ) -> None:
        """Start the threads that take the samples.

        Args:
            accelerators: devices of the node; None if it has none.
            folders: folders for which the free disk space is sampled, by name.
            seconds: pause between two samples, in seconds.
            overdue_seconds: time after which a call counts as hung, in seconds.
            supervisors: returns the pids of this node's supervisors; their descendants are not
                foreign.
        """
        limits = {"seconds": seconds, "overdue_seconds": overdue_seconds}
        self._disks = {
            name: Probe(f"disks of {name}", partial(sample_disk, name, folder), **limits)
            for name, folder in folders.items()
        }
        self._accelerators = (
            None
            if accelerators is None
            else Probe(
                "accelerators", lambda: without_own(accelerators.sample(), supervisors), **limits
            )
        )
        for probe in (*self._disks.values(), self._accelerators):
            if probe is not None:
                probe.start()
        self._failing = False

    def sample(self) -> NodeSample | None:
        """Return the newest sample of each part, and the names of failed parts; never wait.

        Return None if the sample cannot be built; a heartbeat without a sample still keeps the node
        online.
        """
        try:
            sample = self._sample()
        except Exception:
            if not self._failing:
                logger.exception("heartbeats have no sample of this node")
            self._failing = True
            return None
        self._failing = False
        return sample

    def _sample(self) -> NodeSample:
        disks = [probe.poll() for probe in self._disks.values()]
        devices, problem = self._accelerators.poll() if self._accelerators else (None, None)
        limits = cgroup_limits()
        total, used = limits.memory_bytes, limits.memory_used_bytes
        if total is None or used is None:
            total, used = _machine_memory()
        host = HostSample(
            load=os.getloadavg()[0],
            memory_bytes=total,
            memory_used_bytes=used,
            disks=tuple(disk for disk, _ in disks if disk is not None)[:MAX_DISKS],
        )
        problems = (missing for _, missing in disks)
        return NodeSample(
            host=host,
            accelerators=devices or (),
            accelerators_problem=problem,
            problems=tuple(text for text in problems if text is not None)[:16],
        )


def folders_of(data_dir: Path, roots: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders sampled for free space: the data folder, and roots that are folders."""
    named = {name: Path(place) for name, place in roots.items() if not is_object_store(place)}
    return {DATA_DIR: data_dir, **named}


def sample_disk(name: str, folder: Path) -> DiskSample:
    """Return the free space of a folder's file system."""
    found = os.statvfs(folder)
    return DiskSample(
        name=name,
        total_bytes=found.f_frsize * found.f_blocks,
        free_bytes=found.f_frsize * found.f_bavail,
    )


def _shown(text: str) -> str:
    """Return a text, such as a library's error, with only characters that the server accepts."""
    return "".join(each if each.isprintable() else " " for each in text)[:500]


def _machine_memory() -> tuple[int, int]:
    """Return the total and used memory of the machine, in bytes."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    total, available = kibibytes["MemTotal"], kibibytes["MemAvailable"]
    return total * 1024, (total - available) * 1024
