"""Bandwidth and latency of the node's disks: the storage root and the data folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from uuid import uuid4

from trainer.rank_probe.probe_place import Measured, ProbePlace
from trainyard.protocol.rank_probe.probe_values import ProbeValue
from trainyard.spec.storage_uri import is_object_store

CHUNK_BYTES = 4 * 2**20
SYNCED_BYTES = 32 * 2**20
"""Maximum number of bytes between two fsyncs: otherwise memory would take the whole file. The first
fsync comes after `CHUNK_BYTES`, and each further one after twice as many bytes, so that a slow disk
is noticed early."""
LIMIT_SECONDS = 8.0
"""Time after which a write or a read ends early, so that a slow disk is measured, not waited for;
it is not repeated then."""
SYNC_BYTES = 4096
SYNCS = 5


def measure_disks(place: ProbePlace) -> Measured:
    """Yield bandwidths and latencies of both folders, on the first rank of each node.

    All nodes write at the same time, as in a save. The files are removed, also after an error; a
    rank that is killed leaves `.probe-*`.

    Raises:
        OSError: a folder cannot be written or read.
    """
    if place.local_rank or place.storage is None or place.data is None:
        return
    bucket = is_object_store(place.storage)
    yield ProbeValue.STORAGE_KIND, 0 if bucket else 1
    first = ProbeValue.STORAGE_WRITE, ProbeValue.STORAGE_READ, ProbeValue.STORAGE_SYNC_SECONDS
    if not bucket:
        yield from zip(first, _of_folder(Path(place.storage), place.disk_bytes), strict=True)
    second = ProbeValue.DATA_WRITE, ProbeValue.DATA_READ, ProbeValue.DATA_SYNC_SECONDS
    yield from zip(second, _of_folder(place.data, place.disk_bytes), strict=True)


def _of_folder(folder: Path, size: int) -> Iterator[float]:
    """Yield write and read bandwidth in bytes per second, and the time of a small fsync."""
    with _temporary_file(folder) as file:
        yield _faster(lambda: _write(file, size))
        yield _faster(lambda: _read(file))
        yield _sync(file)


def _faster(measure: Callable[[], float]) -> float:
    """Return the faster of two repetitions, because other work on the machine slows one of them."""
    started = time.perf_counter()
    first = measure()
    slow = time.perf_counter() - started > LIMIT_SECONDS
    return first if slow else max(first, measure())


@contextmanager
def _temporary_file(folder: Path) -> Iterator[int]:
    """Open a new file in a folder; remove it at the end."""
    path = folder / f".probe-{uuid4().hex}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield file
    finally:
        os.close(file)
        path.unlink(missing_ok=True)


def _write(file: int, size: int) -> float:
    # Random content, because some file systems store zeros without writing them.
    chunk = memoryview(os.urandom(min(CHUNK_BYTES, size)))
    started, written, seconds = time.perf_counter(), 0, 0.0
    while written < size and seconds < LIMIT_SECONDS:
        end = min(written + max(CHUNK_BYTES, min(written, SYNCED_BYTES)), size)
        while written < end:
            written += os.pwrite(file, chunk[: end - written], written)
        os.fsync(file)
        seconds = time.perf_counter() - started
    return written / seconds


def _read(file: int) -> float:
    # Drop the pages of the file, or the read would come from memory.
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    started, got, seconds = time.perf_counter(), 0, 0.0
    while seconds < LIMIT_SECONDS and (part := len(os.pread(file, CHUNK_BYTES, got))):
        got += part
        seconds = time.perf_counter() - started
    return got / seconds


def _sync(file: int) -> float:
    content, times = os.urandom(SYNC_BYTES), []
    for _ in range(SYNCS):
        started = time.perf_counter()
        os.pwrite(file, content, 0)
        os.fsync(file)
        times.append(time.perf_counter() - started)
    return median(times)
