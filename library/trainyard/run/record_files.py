"""Write records to files of a run directory: append, replace, or create."""

from __future__ import annotations

import os
from pathlib import PurePath

from trainyard.run.atomic import create_file, replace_file
from trainyard.run.record_base import JsonRecord, to_json


def append_record(path: PurePath, record: JsonRecord) -> None:
    """Append a record as one line; a full disk leaves no partial line.

    A part of the line stays only if another process has appended meanwhile.
    Raises:
        OSError: the record could not be appended completely.
    """
    # Use a single write, so that readers of a growing file never see two records in one line.
    line = to_json(record).encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        written = os.write(fd, line)
        if written != len(line):
            if os.fstat(fd).st_size == size + written:  # no other process has appended meanwhile
                os.ftruncate(fd, size)
            raise OSError(f"{path}: only {written} of {len(line)} bytes could be appended")
    finally:
        os.close(fd)


def replace_record(path: PurePath, record: JsonRecord) -> None:
    """Replace a file without syncing it, because only programs read it, and only during the
    attempt.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    # Not synced, because heartbeats are replaced every second, and a power loss ends the attempt.
    replace_file(path, to_json(record) + "\n", durable=False)


def create_record(path: PurePath, record: JsonRecord) -> bool:
    """Write a file for people, indented and with synced content, unless it exists.

    Returns:
        Whether the file was written.

    Raises:
        OSError: the file cannot be written.
    """
    return create_file(path, to_json(record, indent=1) + "\n")
