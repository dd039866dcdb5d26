"""The files of a run directory as a spool: what was acknowledged, and what comes next.

A log keeps its offsets for ever, but not its disk space: when it has grown by `LOG_KEPT_BYTES` and
the server has its beginning, that beginning becomes a hole in the file. Bytes that the server does
not have keep their space up to `LOG_HELD_BYTES`; what is older is given up and reads as zeros.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import logging
import os
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainyard.protocol.worker_messages import MAX_CHUNK_BYTES, Chunk
from worker.node.files import open_regular
from worker.node.node_store import WorkerRun

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
REPORT_BYTES = 2 * 1024 * 1024
"""Raw bytes of one report: in base64 and with all else it stays below the server's limit."""
REPORT_CHUNKS = 256
LOG_KEPT_BYTES = 64 * 1024 * 1024
LOG_HELD_BYTES = 1024 * 1024 * 1024
PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # linux/falloc.h


class SpoolFile:
    """One file that only grows."""

    def __init__(self, name: str, path: Path, *, owner: int, whole_lines: bool) -> None:
        self.name = name
        self._path = path
        self._owner = owner
        self._refused = False
        self._whole_lines = whole_lines
        self._freed = 0
        self.acknowledged = 0
        """Offset up to which the server has the bytes."""

    @property
    def size(self) -> int:
        """Bytes written so far."""
        try:
            return self._path.lstat().st_size
        except FileNotFoundError:
            return 0

    def next_chunk(self, limit: int) -> Chunk | None:
        """Return the bytes after the acknowledged ones, at most `limit`, or None without any.

        Metrics and events are cut after a line; a line longer than the limit goes whole. One that
        no chunk can hold is no record of a trainer: from there on the file is not reported.
        """
        start = self.acknowledged
        try:
            with open_regular(self._path, owner=self._owner) as file:
                file.seek(start)
                content = file.read(limit)
                if self._whole_lines and len(content) == limit and b"\n" not in content:
                    content += file.readline(MAX_CHUNK_BYTES + 1 - limit)
        except FileNotFoundError:
            return None
        except OSError as error:  # a link, a pipe, or of another user
            self._refuse(str(error))
            return None
        if len(content) > MAX_CHUNK_BYTES:
            self._refuse(f"the line at byte {start} is longer than {MAX_CHUNK_BYTES:,} bytes")
            return None
        if self._whole_lines:
            content = content[: content.rfind(b"\n") + 1]
        if not content:
            return None
        return Chunk(
            file=self.name,
            start=start,
            end=start + len(content),
            content=base64.b64encode(zlib.compress(content, 1)).decode("ascii"),
        )

    def _refuse(self, why: str) -> None:
        """Log once that the rest of the file is not reported."""
        if not self._refused:
            logger.warning("%s is not reported: %s", self._path, why)
        self._refused = True

    @property
    def drained(self) -> bool:
        """Whether the server has all that it will ever get: an unfinished line has no end."""
        return self.acknowledged >= self.size or self.next_chunk(CHUNK_BYTES) is None

    def free(self, *, kept: int, held: int) -> None:
        """Give back the disk space of the file's beginning."""
        end = max(min(self.acknowledged, self.size - kept), self.size - held) // 4096 * 4096
        if self._whole_lines or end - self._freed < kept:
            return
        with (
            contextlib.suppress(OSError),  # a file system without holes: the bytes stay
            open_regular(self._path, owner=self._owner, writing=True) as file,
        ):
            _punch_hole(file.fileno(), self._freed, end - self._freed)
        self._freed = end


class Spool:
    """All files that the node of an attempt reports."""

    def __init__(
        self,
        run: WorkerRun,
        *,
        ranks: Iterable[int],
        log_kept_bytes: int = LOG_KEPT_BYTES,
        log_held_bytes: int = LOG_HELD_BYTES,
    ) -> None:
        self._kept, self._held = log_kept_bytes, log_held_bytes
        self._records = [
            SpoolFile("metrics", run.metrics, owner=run.writer, whole_lines=True),
            SpoolFile("events", run.events, owner=run.writer, whole_lines=True),
        ]
        supervisor = os.geteuid()  # it makes the ranks' logs, and owns them
        self._logs = deque(
            SpoolFile(f"log:{r}", run.log(r), owner=supervisor, whole_lines=False) for r in ranks
        )
        self._files = {file.name: file for file in [*self._records, *self._logs]}
        self._record_limit = CHUNK_BYTES
        self._largest_record = 0

    def chunks(self) -> tuple[Chunk, ...]:
        """Return the next bytes of every file, as many as one report holds.

        Metrics and events come first, logs in turn: a rank that prints without end delays neither.
        """
        files = [*self._records, *self._logs]
        self._logs.rotate(-1)
        chunks: list[Chunk] = []
        left = REPORT_BYTES
        self._largest_record = 0
        for file in files:
            if left <= 0 or len(chunks) == REPORT_CHUNKS:
                break
            is_record = file in self._records
            chunk = file.next_chunk(min(left, self._record_limit if is_record else CHUNK_BYTES))
            if chunk is not None:
                size = chunk.end - chunk.start
                chunks.append(chunk)
                left -= size
                self._largest_record = max(self._largest_record, size * is_record)
        return tuple(chunks)

    def narrow(self) -> bool:
        """Send shorter stretches of metrics and events, in the end single lines.

        The server refuses a report with a line that it cannot read, and skips that line when it
        comes alone. Returns whether the next report is shorter than the last one.
        """
        if self._record_limit == 1 or self._largest_record == 0:
            return False
        self._record_limit = max(min(self._record_limit, self._largest_record) // 2, 1)
        return True

    def widen(self) -> None:
        """Send longer stretches again: the server took the last ones."""
        self._record_limit = min(2 * self._record_limit, CHUNK_BYTES)

    def acknowledge(self, offsets: Mapping[str, int]) -> bool:
        """Continue from the bytes that the server has; return whether it has more than before."""
        progress = False
        for name, offset in offsets.items():
            file = self._files.get(name)
            if file is None:
                continue
            progress |= offset > file.acknowledged
            file.acknowledged = offset
            file.free(kept=self._kept, held=self._held)
        return progress

    @property
    def drained(self) -> bool:
        """Whether the server has everything."""
        return all(file.drained for file in self._files.values())


def _punch_hole(fd: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = libc.fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, PUNCH_HOLE_KEEP_SIZE, offset, length):
        raise OSError(ctypes.get_errno(), "fallocate")
