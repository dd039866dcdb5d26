"""A run directory's files as a spool: bytes that the server has, and bytes to send next.

A log keeps its offsets for ever, but not its disk space. When a log has grown by `LOG_KEPT_BYTES`,
the beginning that the server has becomes a hole in the file. Bytes that the server lacks keep their
space up to `LOG_HELD_BYTES`. Older bytes are dropped and read as zeros, and an event records the
loss. On a nearly full disk, artifacts are removed first, then the logs except for
`LOG_SPARE_BYTES`. Metrics and events are never removed.
"""

from __future__ import annotations

import base64
import ctypes
import logging
import os
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.base.redaction import NO_MASK, OutputMask
from trainyard.protocol.worker_messages import ARTIFACTS, EVENT_FILES, MAX_CHUNK_BYTES, Chunk
from trainyard.run.artifacts.artifact_records import DropReason
from worker.artifacts.uploader import ArtifactUploader
from worker.masking import masked_lines
from worker.node.files import open_regular
from worker.node.folder_usage import is_low
from worker.node.node_store import WorkerRun
from worker.supervisor.event_tail import EventTail

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
REPORT_BYTES = 2 * 1024 * 1024
"""Maximum number of raw bytes in one report, so that the whole report, with base64, stays below the
server's limit.
"""
REPORT_CHUNKS = 256
LOG_KEPT_BYTES = 64 * 1024 * 1024
LOG_HELD_BYTES = 1024 * 1024 * 1024
LOG_SPARE_BYTES = 64 * 1024
PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # linux/falloc.h


class SpoolFile:
    """One append-only file of the spool."""

    def __init__(
        self, name: str, path: Path, *, owner: int, whole_lines: bool, mask: OutputMask = NO_MASK
    ) -> None:
        self.name = name
        self.path = path
        self._mask = mask
        self.is_final = False
        """Whether the file no longer grows."""
        self._owner = owner
        self._refused = False
        self.whole_lines = whole_lines
        """Whether the file consists of lines, which must not be cut."""
        self._freed = 0
        self.is_at_end = True
        """Whether the last chunk reached the file's end at that time."""
        self.acknowledged = 0
        """Offset of the first byte that the server lacks."""

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        try:
            return self.path.lstat().st_size
        except FileNotFoundError:
            return 0

    def next_chunk(self, limit: int) -> Chunk | None:
        """Return at most `limit` bytes after the acknowledged ones; None if there are none.

        Chunks of metrics and events end after a line; a line longer than `limit` is sent whole. A
        line above `MAX_CHUNK_BYTES` cannot come from a trainer, so the file is not sent from this
        line on.
        """
        start, before = self.acknowledged, b""
        self.is_at_end = True
        try:
            with open_regular(self.path, owner=self._owner) as file:
                if not self.whole_lines:
                    file.seek(max(start - self._mask.longest, 0))
                    before = file.read(min(start, self._mask.longest))
                file.seek(start)
                content = file.read(limit)
                self.is_at_end = len(content) < limit
                if self.whole_lines and len(content) == limit and b"\n" not in content:
                    content += file.readline(MAX_CHUNK_BYTES + 1 - limit)
        except FileNotFoundError:
            return None
        except OSError as error:  # a link, a pipe, or a file of another user
            self._refuse(str(error))
            return None
        if len(content) > MAX_CHUNK_BYTES:
            self._refuse(f"the line at byte {start} is longer than {MAX_CHUNK_BYTES:,} bytes")
            return None
        if self.whole_lines:
            content = masked_lines(content[: content.rfind(b"\n") + 1], self._mask)
        elif self._mask:
            is_end = self.is_final and self.is_at_end
            content = self._mask.prefix(content, is_end=is_end, before=before)
        if not content:
            return None
        return Chunk(
            file=self.name,
            start=start,
            end=start + len(content),
            content=base64.b64encode(zlib.compress(content, 1)).decode("ascii"),
        )

    def _refuse(self, why: str) -> None:
        """Log once that the rest of the file will not be reported."""
        if not self._refused:
            logger.warning("%s is not reported: %s", self.path, why)
        self._refused = True

    @property
    def drained(self) -> bool:
        """Whether the server has all that can be sent, which excludes an unfinished line."""
        return self.acknowledged >= self.size or self.next_chunk(CHUNK_BYTES) is None

    def free(self, *, kept: int, held: int) -> bool:
        """Free the disk space at the beginning of the file.

        Returns whether the server lacks any of the freed bytes.
        """
        end = max(min(self.acknowledged, self.size - kept), self.size - held) // 4096 * 4096
        if self.whole_lines or end - self._freed < kept:
            return False
        try:
            with open_regular(self.path, owner=self._owner, writing=True) as file:
                if end > self.acknowledged:
                    self._mask_across(file.fileno(), end)
                _punch_hole(file.fileno(), self._freed, end - self._freed)
        except OSError:  # the file system has no holes: the bytes stay
            return False
        lost = end > max(self._freed, self.acknowledged)
        self._freed = end
        return lost

    def _mask_across(self, fd: int, offset: int) -> None:
        """Mask the rest of a secret after an offset, before which the bytes are removed."""
        first = max(offset - self._mask.longest, 0)
        content = os.pread(fd, offset - first + self._mask.longest, first)
        masked = self._mask.masked(content)
        if masked != content:
            os.pwrite(fd, masked[offset - first :], offset)


@dataclass
class _Barrier:
    """Bytes of metrics that the server must have before it receives certain events."""

    events_end: int
    """Offset of the end of these events."""
    sizes: Mapping[SpoolFile, int]
    """Sizes of the metrics files at the time when the events were read."""
    read: dict[SpoolFile, int | None] = field(default_factory=dict)
    """End of each file's chunk in this report; None if the file has no further line."""

    def note(self, file: SpoolFile, chunk: Chunk | None) -> None:
        self.read[file] = None if chunk is None or file.is_at_end else chunk.end

    def is_passed(self) -> bool:
        """Whether the server has these bytes, or gets them in this report."""
        return all(
            file.acknowledged >= size
            or (file in self.read and ((end := self.read[file]) is None or end >= size))
            for file, size in self.sizes.items()
        )


class Spool:
    """All files that a node reports for an attempt."""

    def __init__(
        self,
        run: WorkerRun,
        *,
        ranks: Iterable[int],
        processes: Iterable[int] = (),
        log_kept_bytes: int = LOG_KEPT_BYTES,
        log_held_bytes: int = LOG_HELD_BYTES,
        event_tail: EventTail | None = None,
        artifacts: ArtifactUploader | None = None,
        mask: OutputMask = NO_MASK,
    ) -> None:
        self._root = run.root
        self._event_tail = event_tail
        self._artifacts = artifacts
        self._kept, self._held = log_kept_bytes, log_held_bytes
        self._records = [
            SpoolFile("metrics", run.metrics, owner=run.writer, whole_lines=True, mask=mask),
            SpoolFile("events", run.events, owner=run.writer, whole_lines=True, mask=mask),
        ]
        # One file per process; the files take turns, and none delays events.
        self._rank_metrics = deque(
            SpoolFile(
                f"metrics:{r}", run.metrics_of(r), owner=run.writer, whole_lines=True, mask=mask
            )
            for r in processes
            if r > 0
        )
        supervisor = os.geteuid()  # the supervisor creates and owns the ranks' logs
        of_files = SpoolFile(
            EVENT_FILES, run.event_records, owner=supervisor, whole_lines=True, mask=mask
        )
        self._made_files = [] if event_tail is None else [of_files]
        if artifacts is not None:
            path = artifacts.lines.path
            self._made_files += [
                SpoolFile(ARTIFACTS, path, owner=supervisor, whole_lines=True, mask=mask)
            ]
        self._logs = deque(
            SpoolFile(f"log:{r}", run.log(r), owner=supervisor, whole_lines=False, mask=mask)
            for r in ranks
        )
        self._files = {file.name: file for file in self._all()}
        self._record_limit = CHUNK_BYTES
        self._largest_record = 0
        self._barrier: _Barrier | None = None

    def _all(self) -> list[SpoolFile]:
        return [*self._records, *self._made_files, *self._rank_metrics, *self._logs]

    @property
    def paths(self) -> frozenset[Path]:
        """Paths of the files that are sent to the server."""
        return frozenset(file.path for file in self._all())

    def chunks(self) -> tuple[Chunk, ...]:
        """Return the next bytes of every file, up to the limit of one report.

        Metrics and events come first and logs last. Files of ranks take turns, so that a rank with
        endless output delays no other rank. An event follows the metrics that all ranks of this
        node had written when the event was read. So the server has the points up to a commit's step
        before it receives the commit.
        """
        if self._event_tail is not None:
            self._event_tail.convert()
        metrics, events = self._records
        barrier = self._next_barrier()
        of_ranks = [metrics, *self._rank_metrics]
        ordered = [*of_ranks, events]
        if barrier is not None and barrier.is_passed():  # first: metrics could fill the report
            ordered = [events, *of_ranks]
        files = [*ordered, *self._made_files, *self._logs]
        self._rank_metrics.rotate(-1)
        self._logs.rotate(-1)
        chunks: list[Chunk] = []
        left = REPORT_BYTES
        self._largest_record = 0
        for file in files:
            if left <= 0 or len(chunks) == REPORT_CHUNKS:
                break
            is_record = file.whole_lines
            limit = min(left, self._record_limit if is_record else CHUNK_BYTES)
            # With narrowed chunks, events no longer wait: a line that the server refuses must be
            # sent alone, even if other files have many lines.
            if file is events and self._record_limit == CHUNK_BYTES:
                passed = barrier is not None and barrier.is_passed()
                end = barrier.events_end if barrier is not None and passed else 0
                limit = min(limit, end - events.acknowledged)
            if limit <= 0:
                continue
            chunk = file.next_chunk(limit)
            if barrier is not None:
                barrier.note(file, chunk)
            if chunk is not None:
                size = chunk.end - chunk.start
                chunks.append(chunk)
                left -= size
                self._largest_record = max(self._largest_record, size * is_record)
        return tuple(chunks)

    def _next_barrier(self) -> _Barrier | None:
        """Return the barrier for the next events: the pending one, or a new one."""
        metrics, events = self._records
        if self._barrier is not None and events.acknowledged < self._barrier.events_end:
            self._barrier.read.clear()
            return self._barrier
        end = events.size
        if end <= events.acknowledged:
            self._barrier = None
        else:  # measure after reading events, which ranks write after their metrics
            sizes = {file: file.size for file in (metrics, *self._rank_metrics)}
            self._barrier = _Barrier(end, sizes)
        return self._barrier

    def finish(self) -> None:
        """Note that the files no longer grow, so the end of a log cannot begin a secret."""
        for file in self._files.values():
            file.is_final = True

    def make_room(self) -> None:
        """Free the excess space of logs; on a nearly full disk, drop artifacts first, then logs."""
        self._free_logs(self._kept, self._held, reason="spool_full")
        if self._artifacts is None or not is_low(self._root):
            return
        if self._artifacts.drop_waiting() and not is_low(self._root):
            return
        self._free_logs(LOG_SPARE_BYTES, LOG_SPARE_BYTES, reason="disk_full")

    def _free_logs(self, kept: int, held: int, *, reason: DropReason) -> None:
        """Free the disk space at the beginning of each log; if output is lost, report `reason`."""
        lost = [log.free(kept=kept, held=held) for log in self._logs]
        if any(lost) and self._artifacts is not None:
            self._artifacts.note_lost_output(reason)

    def narrow(self) -> bool:
        """Send shorter chunks of metrics and events, down to single lines.

        The server refuses a report with an invalid line, but skips an invalid line sent alone.
        Returns whether the next report is shorter than the last one.
        """
        if self._record_limit == 1 or self._largest_record == 0:
            return False
        self._record_limit = max(min(self._record_limit, self._largest_record) // 2, 1)
        return True

    def widen(self) -> None:
        """Send longer chunks again, because the server accepted the last ones."""
        self._record_limit = min(2 * self._record_limit, CHUNK_BYTES)

    def acknowledge(self, offsets: Mapping[str, int]) -> bool:
        """Continue at the server's offsets; return whether the server now has more bytes."""
        progress = False
        for name, offset in offsets.items():
            file = self._files.get(name)
            if file is None:
                continue
            progress |= offset > file.acknowledged
            file.acknowledged = offset
        return progress

    @property
    def drained(self) -> bool:
        """Whether the server has all data and artifacts; also converts more of the event files."""
        if self._event_tail is not None and self._event_tail.convert():
            return False
        if self._artifacts is not None and not self._artifacts.done:
            return False
        return all(file.drained for file in self._files.values())


def _punch_hole(fd: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = libc.fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, PUNCH_HOLE_KEEP_SIZE, offset, length):
        raise OSError(ctypes.get_errno(), "fallocate")
