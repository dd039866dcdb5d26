"""Files and folders that appear whole or not at all: written under another name, renamed last."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import BinaryIO

TARGET_EXISTS = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# Some network file systems reject fsync of a folder: there, names are as durable as they get.
NO_FOLDER_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)


def replace_file(
    path: PurePath, content: str | bytes, *, mode: int = 0o644, durable: bool = True
) -> None:
    """Write a file, atomically in place of an existing one.

    Args:
        path: the file; a symbolic link of that name is replaced, not followed.
        content: its whole content; text is encoded as UTF-8.
        mode: permissions of the new file, before the umask.
        durable: sync the content before the rename. The name needs `sync_folder`.

    Raises:
        OSError: the system refuses; the former file is unchanged.
    """
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(_encoded(content))


@contextmanager
def replacing(path: PurePath, *, mode: int = 0o644, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` when the block ends without an error.

    Raises:
        OSError: the system refuses; the former file is unchanged.
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
        draft.unlink(missing_ok=True)  # a full disk is not left full


def create_file(path: PurePath, content: str | bytes, *, mode: int = 0o644) -> bool:
    """Write a file durably unless it exists; return whether it was written.

    Of several processes that try at once, on one machine or many, one succeeds, and none reads
    half a file.

    Raises:
        OSError: the system refuses.
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
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `path`, durably, when the block ends without an error.

    Folders that killed processes left are removed first.

    Args:
        path: the folder; absent or empty. Its parents are created.

    Raises:
        FileExistsError: another process has created `path` meanwhile.
        OSError: the system refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in _leftovers(path):
        shutil.rmtree(leftover, ignore_errors=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
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
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a file's own fsync does not cover its name."""
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
    """Return a name that no other process can foresee: ranks may write into the same folder.

    It ends in no suffix by which readers find files, such as `.json`.
    """
    return Path(path).with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def _create(draft: Path, mode: int) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(draft, flags, mode), "wb")


def _leftovers(path: Path) -> list[Path]:
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.partial")
    return [found for found in path.parent.iterdir() if name.fullmatch(found.name)]


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
