"""`artifacts.jsonl` of a run directory: the artifacts whose content the server already has."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from pathlib import Path

from trainyard.run.artifacts.artifact_records import ArtifactLine
from trainyard.run.atomic import replace_file
from trainyard.run.record_base import to_json
from worker.node.files import open_regular, read_small

logger = logging.getLogger(__name__)

MAX_LINES = 20_000
"""Maximum number of lines per node; further artifacts are not reported."""
COLLECTED = -1
"""Process number of files that no process recorded: the supervisor collects them at the end."""
OUTPUT_LOST = "output: "
"""Prefix of the recorded reason when output of the ranks is dropped."""


class ArtifactLines:
    """The file of artifact lines; the reports send the lines, and two threads append lines.

    Each line holds the offset of its record, so that a later process of the same share continues
    after the last line. Each drop reason gets one line; further records with that reason get no
    line. A separate file notes these further records, because a later process would otherwise
    report them as unreadable: their content is removed.

    Args:
        path: the file of lines.
        state: the file that notes the records without a line.
    """

    def __init__(self, path: Path, state: Path) -> None:
        self.path = path
        self._state = state
        self._skipped: dict[int, int] = {}
        self.made_room = False
        """Whether the content of waiting uploads was removed because the disk was full."""
        self.noted: set[str] = set()
        """Drop reasons that already have a line; each reason causes only one event."""
        self._lock = threading.Lock()
        self.count = 0
        self.offsets: dict[int, int] = {}
        """End offset of the last record in the file, by process."""
        self.collected: set[str] = set()
        """Names of the files that were collected at the end of the attempt."""
        # Create the file before any rank starts; otherwise a rank could put another file there.
        with contextlib.suppress(OSError):  # the file exists, or `append` fails as well
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        self._recover()

    @property
    def is_full(self) -> bool:
        """Whether the file accepts no further artifacts."""
        return self.count >= MAX_LINES

    def append(self, line: ArtifactLine) -> None:
        """Append a whole line; on an error, append nothing.

        Raises:
            OSError: the line cannot be written, for example because the disk is full.
        """
        content = to_json(line).encode() + b"\n"
        with self._lock, open_regular(self.path, writing=True) as file:
            size = os.lseek(file.fileno(), 0, os.SEEK_END)
            if (written := os.write(file.fileno(), content)) != len(content):
                os.ftruncate(file.fileno(), size)
                raise OSError(f"{self.path}: only {written} of {len(content)} bytes fit")
            name = None if line.record is None else line.record.name
            self._count(line.process, line.end, name=name, dropped=line.dropped)

    def skip(self, process: int, end: int) -> None:
        """Note that the artifact record that ends at offset `end` gets no line."""
        self.offsets[process] = max(self.offsets.get(process, 0), end)
        with self._lock:
            self._skipped[process] = self.offsets[process]
            self._keep_state()

    def note_made_room(self) -> None:
        """Note that content waiting for upload is about to be removed."""
        with self._lock:
            self.made_room = True
            self._keep_state()

    def _keep_state(self) -> None:
        state = {"offsets": self._skipped, "made_room": self.made_room}
        try:
            replace_file(self._state, json.dumps(state), durable=False)
        except OSError as error:  # the disk is full: the next note writes all
            logger.warning("%s is not written: %s", self._state, error)

    def _recover(self) -> None:
        """Count the lines of an earlier process, and remove an incomplete last line."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            state = json.loads(read_small(self._state))
            self.made_room = bool(state["made_room"])
            self._skipped = {int(key): int(end) for key, end in state["offsets"].items()}
            self.offsets |= self._skipped
        whole = 0
        with contextlib.suppress(OSError), open_regular(self.path, writing=True) as file:
            for text in file:
                if not text.endswith(b"\n"):
                    file.truncate(whole)  # otherwise the next line would be appended to it
                    return
                whole += len(text)
                try:
                    found = json.loads(text)
                    process, end = int(found["process"]), int(found["end"])
                    name = (found["record"] or {}).get("name")
                    dropped = found.get("dropped")
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
                self._count(process, end, name=name, dropped=dropped)

    def _count(self, process: int, end: int, *, name: str | None, dropped: str | None) -> None:
        self.count += 1
        if dropped is not None:
            self.noted.add(OUTPUT_LOST + dropped if name is None else dropped)
        if process == COLLECTED and name is not None:
            self.collected.add(name)
        self.offsets[process] = max(self.offsets.get(process, 0), end)
