"""Write artifacts of one process into the run directory, in a separate thread.

When the disk or the queue is full, artifacts are dropped, so that metrics and logs keep space: a
twentieth of the disk, at most 256 MiB, always stays free. The first drop per reason is recorded
and becomes an event of the job.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.run.artifacts.artifact_records import (
    MAX_FILE_BYTES,
    MAX_IMAGE_BYTES,
    ArtifactRecord,
    DropReason,
    HistogramRecord,
)
from trainyard.run.record_files import append_record

logger = logging.getLogger("trainyard")

RESERVED_BYTES, RESERVED_SHARE = 256 * 1024 * 1024, 20
"""Free disk space that artifacts leave for metrics and logs: the first value in bytes; on a small
disk, the size of the disk divided by the second value."""
QUEUE_BYTES, QUEUE_ITEMS = 64 * 1024 * 1024, 1000
"""Limits of the queue, in bytes and in artifacts; artifacts beyond a limit are dropped."""
SPOOL_BYTES, SPOOL_FILES = 1024 * 1024 * 1024, 5000
"""Limits of the content of one process that the server has not stored yet, in bytes and in files;
artifacts beyond a limit are dropped."""
RECORD_BYTES = 16 * 1024
CLOSE_SECONDS = 10.0
"""Maximum wait for the thread at the end of the process."""
COPY_BYTES = 1024 * 1024

Content = bytes | HistogramRecord


@dataclass(frozen=True)
class PendingArtifact:
    """An artifact that the thread must complete."""

    record: ArtifactRecord
    make: Callable[[], Content] | None
    """Function that returns the content; None if the record has a file, or its content was
    dropped."""
    size: int
    """Size of the artifact in the queue, in bytes."""


def reserve(folder: Path) -> tuple[int, int]:
    """Return the free space of a folder's disk, and the space that artifacts must leave, in bytes.

    Raises:
        OSError: the disk cannot be queried.
    """
    disk = os.statvfs(folder)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    return free, min(RESERVED_BYTES, total // RESERVED_SHARE)


class ArtifactWriter:
    """Queue of artifacts of one process, with the thread that writes them.

    Args:
        folder: the folder `artifacts/` of the run directory.
        process: number of the process.
    """

    def __init__(self, folder: Path, process: int) -> None:
        self._folder = folder
        self._process = process
        self._records = folder / f"rank-{process}.jsonl"
        self._queue: deque[PendingArtifact] = deque()
        self._waiting_bytes = 0
        self._spooled: dict[Path, int] = {}
        self._lock = threading.Lock()  # held for microseconds
        self._write_lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._recorded: set[DropReason] = set()
        self._warned = False
        self.dropped = 0
        """Number of dropped artifacts."""

    def add(self, record: ArtifactRecord, make: Callable[[], Content] | None, size: int) -> None:
        """Queue an artifact; if the queue is full, drop the artifact and its copied file."""
        with self._lock:
            waiting = len(self._queue)
            full = waiting >= QUEUE_ITEMS or (
                waiting > 0 and self._waiting_bytes + size > QUEUE_BYTES
            )
            if not full:
                self._queue.append(PendingArtifact(record, make, size))
                self._waiting_bytes += size
        if full:
            if record.file is not None:
                self._discard(record.file)
            if not self._drops("queue_full"):
                return
            dropped = replace(record, file=None, dropped="queue_full")
            with self._lock:
                self._queue.append(PendingArtifact(dropped, None, 0))
        self._start()

    def copy(self, source: Path, record: ArtifactRecord) -> None:
        """Copy a file into the run directory, in the calling thread, and queue its record.

        Later changes to the file do not affect the copy. If the disk, the spool or the queue is
        full, or the copy fails, the artifact is dropped.

        Raises:
            OSError: the file cannot be opened.
            ValueError: the file is larger than 256 MiB.
        """
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                raise ValueError(
                    f"{source} has {size:,} bytes: {MAX_FILE_BYTES:,} at most are legal; a larger "
                    "file belongs in a checkpoint or on a storage root"
                )
            reason = self._lack(size)
            name = None
            if reason is None:
                name = self._name()
                try:
                    self._write_content(name, lambda: file.read(COPY_BYTES))
                except OSError as error:
                    self._warn(error)
                    reason, name = "disk_full", None
        if reason is None:
            self.add(replace(record, file=name), None, 0)
        elif self._drops(reason):
            self.add(replace(record, dropped=reason), None, 0)

    def flush(self) -> None:
        """Write all queued artifacts, in the calling thread."""
        with self._write_lock:
            while self._queue:
                self._write(self._queue[0])
                with self._lock:
                    self._waiting_bytes -= self._queue.popleft().size

    def close(self) -> None:
        """Write all queued artifacts and end the thread; give up after `CLOSE_SECONDS`."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        if self.dropped:
            logger.warning("%d artifacts were dropped", self.dropped)

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._work, name="trainyard-artifacts", daemon=True
                    )
                    self._thread.start()
        self._wake.set()

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            self.flush()
        self.flush()

    def _write(self, waiting: PendingArtifact) -> None:
        """Write one artifact and its record; catch all errors, so that the thread continues."""
        record = waiting.record
        try:
            content = None if waiting.make is None else waiting.make()
            size = len(content) if isinstance(content, bytes) else RECORD_BYTES
            if record.dropped is None and record.file is None:
                reason = "too_large" if size > MAX_IMAGE_BYTES else self._lack(size)
                if reason is not None:
                    if not self._drops(reason):
                        return
                    record = replace(record, dropped=reason)
                elif isinstance(content, bytes):
                    name = self._name()
                    self._write_content(name, iter((content, b"")).__next__)
                    record = replace(record, file=name)
                else:
                    record = replace(record, histogram=content)
            append_record(self._records, record)
        except OSError as error:
            if record.file is not None:  # the record was not written, so remove its file
                self._discard(record.file)
            self.dropped += 1
            self._warn(error)
        except Exception:  # from an array of another library; continue with the next artifact
            self.dropped += 1
            logger.exception("%s %r was dropped", record.kind, record.name)

    def _write_content(self, name: str, read: Callable[[], bytes]) -> None:
        """Write a content file, completely or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        path, size = self._folder / name, 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(path, flags, 0o644), "wb") as target:
                while (part := read()) and size <= MAX_FILE_BYTES:
                    size += target.write(part)
        except OSError:
            path.unlink(missing_ok=True)  # free the space: the disk may be full
            raise
        with self._lock:
            self._spooled[path] = size

    def _discard(self, name: str) -> None:
        path = self._folder / name
        with self._lock:
            self._spooled.pop(path, None)
        with suppress(OSError):
            path.unlink()

    def _name(self) -> str:
        return f"rank-{self._process}-{secrets.token_hex(8)}"

    def _lack(self, size: int) -> DropReason | None:
        """Return the reason why this many bytes do not fit; None if they fit."""
        try:
            free, reserved = reserve(self._folder)
        except OSError:
            return "disk_full"
        if free - size < reserved:
            return "disk_full"
        if not self._fits(size):
            with self._lock:  # the supervisor removes files once the server has them
                kept = [path for path in self._spooled if path.exists()]
                self._spooled = {path: self._spooled[path] for path in kept}
            if not self._fits(size):
                return "spool_full"
        return None

    def _fits(self, size: int) -> bool:
        with self._lock:
            return (
                len(self._spooled) < SPOOL_FILES
                and sum(self._spooled.values()) + size <= SPOOL_BYTES
            )

    def _drops(self, reason: DropReason) -> bool:
        """Count a drop; return whether the drop is the first for its reason and must be
        recorded."""
        with self._lock:
            self.dropped += 1
            first = reason not in self._recorded
            self._recorded.add(reason)
        return first

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("an artifact was dropped, and training goes on: %s", error)


def files_below(folder: Path, *, most: int) -> list[tuple[Path, str]]:
    """Return the regular files below a folder, with their relative paths; ignore links.

    Raises:
        ValueError: there are more than `most` files or folders.
        OSError: a folder cannot be read.
    """
    found: list[tuple[Path, str]] = []
    waiting = [(folder, "")]
    while waiting:
        current, prefix = waiting.pop()
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), f"{prefix}{entry.name}/"))
                elif entry.is_file(follow_symlinks=False):
                    found.append((Path(entry.path), prefix + entry.name))
                if len(found) > most or len(waiting) > most:
                    raise ValueError(f"{folder} has more than {most:,} files, which are the most")
    return sorted(found, key=lambda file: file[1])
