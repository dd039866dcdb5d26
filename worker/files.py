"""Writes small files so that whoever reads them sees all of it or nothing, and reads records."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from specs.base import RecordModel

Record = TypeVar("Record", bound=RecordModel)

LARGEST_RECORD = 16 * 1024 * 1024


def replace_file(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file durably and atomically, in place of the one that is there."""
    beside = _write_beside(path, text, mode)
    beside.replace(path)


def create_file(path: Path, text: str, *, mode: int = 0o644) -> bool:
    """Write a file durably unless it is there; say whether it was written.

    Of several that try at once, on one machine or many, one succeeds, and none sees half a file.
    """
    beside = _write_beside(path, text, mode)
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        beside.unlink()
    return True


def read_record(path: Path, kind: type[Record], *, owner: int | None = None) -> Record | None:
    """Return the record of a file, or None where there is none that can be read.

    Args:
        path: the file.
        kind: model of the record.
        owner: user who writes it; this process's own when absent.
    """
    try:
        return kind.model_validate_json(read_small(path, owner=owner))
    except (OSError, ValidationError):
        return None


def read_small(path: Path, *, owner: int | None = None) -> bytes:
    """Return a small file whole.

    Raises:
        OSError: there is none, it is not the owner's regular file, or larger than 16 MiB.
    """
    with open_regular(path, owner=owner) as file:
        content = file.read(LARGEST_RECORD + 1)
    if len(content) > LARGEST_RECORD:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def open_regular(path: Path, *, owner: int | None = None, writing: bool = False) -> BinaryIO:
    """Open a file that other processes may have put there, such as the ranks of a job.

    A link would lead to another file, such as the node's token; a pipe would block; and a hard link
    shows by its owner.

    Args:
        path: the file; its folder is trusted.
        owner: user to whom it must belong; this process's own when absent.
        writing: open it for writing as well; it must exist.

    Raises:
        OSError: there is none, or it is not the owner's regular file.
    """
    access = os.O_RDWR if writing else os.O_RDONLY
    # Without O_NONBLOCK opening a pipe waits for its other end.
    fd = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != (
        os.geteuid() if owner is None else owner
    ):
        os.close(fd)
        raise PermissionError(errno.EPERM, "no regular file of its writer", str(path))
    return os.fdopen(fd, "r+b" if writing else "rb")


def _write_beside(path: Path, text: str, mode: int) -> Path:
    # No name that ends in .json: the trainer takes every requests/*.json for a request. Ranks may
    # write into the same folder: the name cannot be known before, and none that exists is opened.
    beside = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(beside, flags, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return beside
