"""Reads small files and records that other processes wrote, such as the ranks of a job."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from trainyard.base.redaction import NO_MASK, OutputMask
from trainyard.outside.terminal_rows import shown_text
from trainyard.protocol.record_parser import parse_record

Record = TypeVar("Record")

TAIL_BYTES = 64 * 1024
"""Number of bytes read from the end of a file; large, because each update of a progress bar adds to
its line."""
LARGEST_RECORD = 16 * 1024 * 1024


def read_record(path: Path, kind: type[Record], *, owner: int | None = None) -> Record | None:
    """Return the record in a file; None if the file is missing, unreadable or no such record.

    Args:
        path: path of the file.
        kind: class of the record.
        owner: user id that must own the file; by default, this process' own user id.
    """
    try:
        return parse_record(kind, read_small(path, owner=owner))
    except (OSError, ValidationError):
        return None


def read_small(path: Path, *, owner: int | None = None) -> bytes:
    """Return the content of a small file.

    Raises:
        OSError: the file is missing, is not a regular file of the owner, or is larger than 16 MiB.
    """
    with open_regular(path, owner=owner) as file:
        content = file.read(LARGEST_RECORD + 1)
    if len(content) > LARGEST_RECORD:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def open_regular(
    path: Path, *, owner: int | None = None, writing: bool = False, parent: int | None = None
) -> BinaryIO:
    """Open a regular file that another process may have created, such as a rank of a job.

    A symbolic link could lead to another file, such as the node's token, and a pipe would block, so
    both are refused. A hard link to another user's file is detected by the owner of the file.

    Args:
        path: path of the file; its folder is trusted.
        owner: user id that must own the file; by default, this process' own user id.
        writing: whether to open an existing file for writing as well.
        parent: descriptor of the folder to which the path is relative.

    Raises:
        OSError: the file is missing, or is not a regular file of the owner.
    """
    access = os.O_RDWR if writing else os.O_RDONLY
    # Without O_NONBLOCK, opening a pipe would wait for a process at its other end.
    flags = access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags, dir_fd=parent)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != (
        os.geteuid() if owner is None else owner
    ):
        os.close(fd)
        raise PermissionError(errno.EPERM, "no regular file of its writer", str(path))
    return os.fdopen(fd, "r+b" if writing else "rb")


def read_beneath(base: Path, parts: Sequence[str], *, limit: int) -> bytes:
    """Return the content of a file that a job names, of any owner; follow no links.

    Args:
        base: a trusted folder.
        parts: names that lead from `base` to the file.
        limit: maximum size of the file, in bytes.

    Raises:
        OSError: the file is missing, not regular, behind a link, or larger than the limit.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for index, part in enumerate(parts):
        kind = os.O_DIRECTORY if index < len(parts) - 1 else 0
        try:
            inner = os.open(part, flags | kind, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    with os.fdopen(fd, "rb", closefd=True) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PermissionError(errno.EPERM, "no regular file", parts[-1])
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), parts[-1])
    return content


def tail(path: Path, *, mask: OutputMask = NO_MASK, limit: int = 2000) -> str:
    """Return the last characters of an output file as a terminal shows them, for a message.

    They are masked before they are cut, because the rest of a secret would not be found.
    """
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            output = file.read(TAIL_BYTES)
    except OSError:
        return ""
    return mask.text(shown_text(mask.masked(output)).strip())[-limit:]
