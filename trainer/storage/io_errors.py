"""Converts storage errors to typed errors, and computes digests of files."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import xxhash

from trainer.errors import CheckpointError
from trainer.storage.download import Download
from trainer.storage.root import StoragePath
from trainyard.run.checkpoint_faults import CheckpointFault

FULL = (errno.ENOSPC, errno.EDQUOT)
TRANSIENT = (
    *FULL,
    errno.EROFS,  # Linux remounts a file system read-only after an error
    errno.EIO,
    errno.ESTALE,  # the server of a network file system was restarted
    errno.ETIMEDOUT,
    # The following come from `s3_client`:
    errno.EHOSTUNREACH,  # no response
    errno.EREMOTEIO,  # status 5xx
    errno.EBUSY,  # too many requests
)
OF_CONTENT = (errno.ENOENT, errno.EIO)  # a missing file or a bad sector is damage, not an outage
XXH3_128 = "xxh3_128"
LARGEST_SMALL_FILE = 64 * 2**20
"""Maximum size of a manifest, in bytes; a larger file is no manifest."""
READ_SIZE = 8 * 2**20  # bytes; large enough that the disk, not Python, limits the speed


@contextmanager
def storage_errors(verb: str, path: StoragePath) -> Iterator[None]:
    """Convert an `OSError` in the block to a `CheckpointError` with path and cause."""
    try:
        yield
    except OSError as error:
        at_fault = str(error.filename or path)
        message = f"cannot {verb} {at_fault}: {error.strerror or error}"
        if error.errno in FULL and isinstance(path, Path):
            message += f" ({_free_space(path)})"
        gone = verb == "read" and error.errno == errno.ENOENT
        raise CheckpointError(
            message,
            path=at_fault,
            of_storage=error.errno not in OF_CONTENT,
            transient=error.errno in TRANSIENT,
            fault=CheckpointFault.FILE_MISSING if gone else None,
        ) from error


def digest(content: bytes) -> str:
    """Return the XXH3-128 of `content` in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(content)


def file_digest(path: StoragePath, *, algorithm: str = XXH3_128) -> str:
    """Return the checksum of a file's content, in hexadecimal; may raise OSError."""
    hasher = xxhash.xxh3_128() if algorithm == XXH3_128 else hashlib.new(algorithm)
    with _opened(path) as file:
        while chunk := file.read(READ_SIZE):
            hasher.update(chunk)
    return hasher.hexdigest()


def read_small(path: StoragePath) -> bytes:
    """Return a small file's content, cut off at the size limit; may raise OSError."""
    if not isinstance(path, Path):
        return path.read_bytes()
    with open_regular(path) as file:
        return file.read(LARGEST_SMALL_FILE)


def _opened(path: StoragePath) -> FileIO | Download:
    return open_regular(path) if isinstance(path, Path) else path.open("rb", buffering=0)


def open_regular(path: Path) -> FileIO:
    """Open a file for reading; may raise OSError.

    Refuse a pipe or device, because a read from it could block for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return FileIO(descriptor)


def _free_space(path: Path) -> str:
    existing = next(parent for parent in path.parents if parent.exists())
    usage = shutil.disk_usage(existing)
    return f"{usage.free / 2**20:,.1f} MiB free of {usage.total / 2**20:,.1f} MiB"
