"""`artifacts.jsonl` of a run directory: what was logged, once the server has its content."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path

from trainyard.run.artifacts.artifact_records import ArtifactLine
from trainyard.run.record_base import to_json
from worker.node.files import open_regular

MOST_LINES = 20_000
"""Lines of one node, after which no artifact is reported."""
COLLECTED = -1
"""In place of the number of a process: the supervisor's own."""


class ArtifactLines:
    """The file that reports send; two threads append to it.

    Its lines hold the offsets of what they were made of, so that a later process of the same share
    continues after the last one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.count = 0
        self.offsets: dict[int, int] = {}
        """Offset up to which the records of a process are in the file."""
        self.collected: set[str] = set()
        """Names of what was collected at the end of the attempt."""
        # Before any rank begins, which could put something else there.
        with contextlib.suppress(OSError):  # it exists, or `append` fails as well
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        self._recover()

    @property
    def is_full(self) -> bool:
        """Whether no further artifact is taken."""
        return self.count >= MOST_LINES

    def append(self, line: ArtifactLine) -> None:
        """Append a line, whole or not at all.

        Raises:
            OSError: the system refuses, for example because the disk is full.
        """
        content = to_json(line).encode() + b"\n"
        with self._lock, open_regular(self.path, writing=True) as file:
            size = os.lseek(file.fileno(), 0, os.SEEK_END)
            if (written := os.write(file.fileno(), content)) != len(content):
                os.ftruncate(file.fileno(), size)
                raise OSError(f"{self.path}: only {written} of {len(content)} bytes fit")
            self._count(line.process, line.end, None if line.record is None else line.record.name)

    def _recover(self) -> None:
        """Count the lines of a former process, and remove half a line that it left at the end."""
        whole = 0
        with contextlib.suppress(OSError), open_regular(self.path, writing=True) as file:
            for text in file:
                if not text.endswith(b"\n"):
                    file.truncate(whole)  # else the next line would be one with it
                    return
                whole += len(text)
                try:
                    found = json.loads(text)
                    process, end = int(found["process"]), int(found["end"])
                    name = (found["record"] or {}).get("name")
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
                self._count(process, end, name)

    def _count(self, process: int, end: int, name: str | None) -> None:
        self.count += 1
        if process == COLLECTED and name is not None:
            self.collected.add(name)
        self.offsets[process] = max(self.offsets.get(process, 0), end)
