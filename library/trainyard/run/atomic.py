"""Atomic writes: a file or folder is written under another name and then renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import BinaryIO

LOCK = ".lock"
"""Suffix of the lock file of a draft."""
TARGET_EXISTS = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# Some network file systems reject fsync of a folder; there, names cannot be made more durable.
NO_FOLDER_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)


def replace_file(
    path: PurePath, content: str | bytes, *, mode: int = 0o644, durable: bool = True
) -> None:
    """Write a file atomically; an existing file is replaced.

    Args:
        path: the file. A symbolic link with this name is replaced, not followed.
        content: the whole content; text is encoded as UTF-8.
        mode: permissions of the new file, before the umask.
        durable: whether to sync the content before the rename; `sync_folder` syncs the name.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(_encoded(content))


@contextmanager
def replacing(path: PurePath, *, mode: int = 0o644, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a draft file that replaces `path` once the block has ended without an error.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    draft = _draft(path)
    try:
        with _create(draft, mode) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)  # free the space: the disk may be full


def create_file(path: PurePath, content: str | bytes, *, mode: int = 0o644) -> bool:
    """Write a file unless it exists; return whether it was written.

    The content is synced; `sync_folder` syncs the name. If several processes on any machines do
    this at the same time, one of them succeeds, and none reads a partial file.

    Raises:
        OSError: the file cannot be written.
    """
    draft = _draft(path)
    try:
        with _create(draft, mode) as file:
            file.write(_encoded(content))
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # unlike a rename, a link never replaces another process's file
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


@contextmanager
def new_folder(path: Path, *, parents: bool = True) -> Iterator[Path]:
    """Yield a folder to fill; once the block has ended without an error, rename it to `path`.

    The rename is durable. Before the block, leftover folders of killed processes are removed;
    folders of live processes stay.

    Args:
        path: the target, which is absent or an empty folder.
        parents: whether to create missing parents of `path`.

    Raises:
        FileExistsError: at the end of the block, `path` is a file or a folder with content.
        OSError: the folder cannot be written.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    with _locked_draft(path) as draft:
        draft.mkdir()
        yield draft
        for file in draft.iterdir():
            _sync(file, os.O_RDONLY)
        sync_folder(draft)
        try:
            draft.rename(path)
        except OSError as error:
            if error.errno not in TARGET_EXISTS:
                raise
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, if the file system can sync folders; fsync of a file does
    not cover the file's name."""
    try:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _draft(path: PurePath) -> Path:
    """Return a name that no other process can predict, because ranks may write into the folder.

    The name has no suffix that readers search for, such as `.json`.
    """
    return Path(path).with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def _create(draft: Path, mode: int) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(draft, flags, mode), "wb")


@contextmanager
def _locked_draft(path: Path) -> Iterator[Path]:
    """Yield the path of a draft that no other process removes while the block runs.

    A lock file next to the draft is locked; the system unlocks it when the process ends for any
    reason.
    """
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        lock = draft.with_name(draft.name + LOCK)
        with _create(lock, 0o644) as file:
            if not _took(file.fileno()):
                continue  # another process found the file before the lock, and removes it
            try:
                yield draft
            finally:
                _remove(draft, lock)
            return


def _remove_leftovers(path: Path) -> None:
    """Remove the drafts of processes that have ended."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.partial{re.escape(LOCK)}")
    for lock in [found for found in path.parent.iterdir() if name.fullmatch(found.name)]:
        # Without support for locks, it is unknown whether the process has ended: keep the draft.
        with suppress(OSError), _opened(lock) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock.with_suffix(""), lock)


def _remove(draft: Path, lock: Path) -> None:
    """Remove a draft, then its lock; keep the lock if a part of the draft remains."""
    shutil.rmtree(draft, ignore_errors=True)
    if not draft.exists():
        lock.unlink(missing_ok=True)


def _took(descriptor: int) -> bool:
    """Lock a new file; return False if another process has already locked or removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no process removes drafts without locks
    return os.fstat(descriptor).st_nlink > 0


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # NFS grants an exclusive lock only if the file is open for writing.
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
