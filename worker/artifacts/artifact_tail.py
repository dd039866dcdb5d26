"""Reads the artifact records that the processes of a program append to their files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trainyard.protocol.record_parser import parse_record
from trainyard.run.artifacts.artifact_records import ArtifactRecord, check_record
from worker.node.files import open_regular

logger = logging.getLogger(__name__)

TURN_BYTES = 256 * 1024
"""Maximum number of bytes per read of the records; every valid line is shorter."""
MAX_WARNINGS = 100
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ArtifactTail:
    """The folder `artifacts/` of a share; ranks own the folder, so links are not followed.

    Args:
        folder: the folder `artifacts/`.
        writer: user id of the ranks.
    """

    def __init__(self, folder: Path, *, writer: int) -> None:
        self._folder = folder
        self._writer = writer
        self._warnings = 0
        self._refused: set[int] = set()

    def records(self, process: int, start: int) -> Iterator[tuple[int, ArtifactRecord | None]]:
        """Yield the next records of a process from offset `start`, each with its end offset.

        One call reads at most `TURN_BYTES`. An invalid line is yielded as None. If a line is longer
        than one read, the line and everything after it are ignored.
        """
        if process in self._refused:
            return
        try:
            with self.open(f"rank-{process}.jsonl") as file:
                file.seek(start)
                content = file.read(TURN_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:  # a link, a pipe, or a file of another user
            self._refuse(process, str(error))
            return
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and len(content) == TURN_BYTES:
            self._refuse(process, f"the line at byte {start} is too long")
        for line in whole.splitlines(keepends=True):
            start += len(line)
            try:
                record = parse_record(ArtifactRecord, line)
                check_record(record)
            except ValueError as error:
                self._warn(f"a record of process {process} before byte {start}: {error}")
                yield start, None
            else:
                yield start, record

    def open(self, name: str) -> BinaryIO:
        """Open a regular file of the ranks in the folder.

        Raises:
            OSError: the folder has no such file.
        """
        folder = os.open(self._folder, FOLDER)
        try:
            return open_regular(Path(name), owner=self._writer, parent=folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        """Remove a content file; a missing file is no error."""
        try:
            folder = os.open(self._folder, FOLDER)
        except OSError:
            return
        try:
            os.unlink(name, dir_fd=folder)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._warn(f"{name} cannot be removed: {error}")
        finally:
            os.close(folder)

    def content_files(self) -> list[str]:
        """Return the names of the content files in the folder."""
        try:
            return [file.name for file in self._folder.iterdir() if file.suffix != ".jsonl"]
        except OSError:
            return []

    def _refuse(self, process: int, why: str) -> None:
        self._refused.add(process)
        self._warn(f"artifacts of process {process} are not reported: {why}")

    def _warn(self, message: str) -> None:
        self._warnings += 1
        if self._warnings <= MAX_WARNINGS:
            logger.warning("%s", message)
