"""Write the records of one process of a program, in a separate thread.

A call only appends to a list. The thread starts with the first record. A forked process, such as a
worker of a data loader, has no thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.record_base import to_json
from trainyard.run.record_files import replace_record
from trainyard.run.records import Heartbeat, MetricRecord

logger = logging.getLogger("trainyard")

PAUSE_SECONDS = 0.2
"""Minimum time between two writes; records that arrive in between are written together."""
RETRY_SECONDS = 2.0
"""Minimum time between two writes after a failed write."""
CLOSE_SECONDS = 10.0
"""Maximum wait for the last records at the end of the process."""
MAX_VALUES = 200_000
"""Maximum number of values in the queue, about 30 MB; further records are dropped."""
RECORDS_AT_ONCE = 500
FACTS_SECONDS = 1.0
"""Minimum time between two writes of the facts, except when the script flushes or ends."""


class SessionWriter:
    """Queue of records of one process, with the thread that writes them.

    Args:
        metrics: file to which metrics are appended.
        heartbeat: file that each heartbeat replaces; None if this process writes no heartbeats.
        facts: file with the facts of the run, which is replaced; None if this process writes none.
    """

    def __init__(self, metrics: Path, heartbeat: Path | None, facts: Path | None = None) -> None:
        self._metrics = metrics
        self._heartbeat = heartbeat
        self._facts_file = facts
        self._facts: Callable[[], RunFacts] | None = None
        self._facts_at = 0.0  # monotonic
        self._queue: list[MetricRecord] = []
        self._waiting_values = 0
        self._beat: Heartbeat | None = None
        # The lock is only held for microseconds, so that no call waits for a write.
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False
        self.dropped = 0
        """Number of records that were dropped because the queue was full."""

    def add(self, record: MetricRecord) -> None:
        """Queue a record; drop it if the queue is full."""
        size = len(record.values) + 1
        with self._lock:
            if self._waiting_values + size > MAX_VALUES:
                self.dropped += 1
                return
            self._waiting_values += size
            self._queue.append(record)
        self._start()

    def beat(self, heartbeat: Heartbeat) -> None:
        """Queue a heartbeat; it replaces a queued heartbeat."""
        if self._heartbeat is not None:
            self._beat = heartbeat
            self._start()

    def replace_facts(self, facts: Callable[[], RunFacts]) -> None:
        """Queue the facts; the thread writes their newest values, at most once per
        `FACTS_SECONDS`."""
        if self._facts_file is not None:
            self._facts = facts
            self._start()

    def flush(self, *, facts: bool = True) -> None:
        """Write the queue, in the calling thread.

        After a failed write, unwritten records stay in the queue.

        Args:
            facts: whether to write the facts too, if they have changed.
        """
        with self._write_lock:
            try:
                self._write()
                if facts:
                    self._write_facts()
            except OSError as error:
                if not self._warned:
                    logger.warning("metrics wait for the disk, and training goes on: %s", error)
                self._warned = True

    def close(self) -> None:
        """Write the queue and end the thread; give up after `CLOSE_SECONDS`."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        if self.dropped:
            logger.warning(
                "%d records of metrics were dropped: more came than the disk took", self.dropped
            )

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    # A daemon, because the interpreter joins other threads before `atexit`.
                    self._thread = threading.Thread(
                        target=self._work, name="trainyard-writer", daemon=True
                    )
                    self._thread.start()
        self._wake.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            due = time.monotonic() - self._facts_at >= FACTS_SECONDS
            self.flush(facts=due)
            failed = bool(self._queue) or (due and self._facts is not None)
            self._closing.wait(RETRY_SECONDS if failed else PAUSE_SECONDS)
            if failed or self._facts is not None:
                self._wake.set()
        self.flush()

    def _write(self) -> None:
        """Write the queued heartbeat and records.

        Raises:
            OSError: a file cannot be written; unwritten records stay in the queue.
        """
        beat = self._beat
        if beat is not None and self._heartbeat is not None:
            replace_record(self._heartbeat, beat)
            if self._beat is beat:
                self._beat = None
        while batch := self._queue[:RECORDS_AT_ONCE]:
            append_whole(self._metrics, batch)
            with self._lock:
                del self._queue[: len(batch)]
                self._waiting_values -= sum(len(record.values) + 1 for record in batch)

    def _write_facts(self) -> None:
        """Write the facts if they have changed.

        Raises:
            OSError: the file cannot be written; the facts stay queued.
        """
        facts, self._facts = self._facts, None
        if facts is None or self._facts_file is None:
            return
        self._facts_at = time.monotonic()
        try:
            replace_record(self._facts_file, facts())
        except OSError:
            self._facts = facts
            raise


def append_whole(path: Path, records: Sequence[MetricRecord]) -> None:
    """Append records as lines, all or none; so a full disk leaves no partial line.

    Raises:
        OSError: the file cannot be written, or the disk lacks space for all records.
    """
    content = b"".join(to_json(record).encode() + b"\n" for record in records)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        written = os.write(descriptor, content)
        if written != len(content):
            os.ftruncate(descriptor, size)
            raise OSError(f"{path}: only {written} of {len(content)} bytes could be appended")
    finally:
        os.close(descriptor)
