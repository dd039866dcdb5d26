"""Disk space of a folder: measured within limits, watched by a thread, and freed."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
import subprocess
import threading
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.run.artifacts.artifact_writer import reserve

logger = logging.getLogger(__name__)

BLOCK = 512
"""Unit of `st_blocks`, whatever the file system."""
POLL_SECONDS = 5.0
"""Shortest pause between two scans."""
PAUSE_FACTOR = 20
"""Pause between two scans as a multiple of the last one's time: at most a twentieth of a core."""
SCARCE_SHARE = 10
"""While a disk is nearly full, a folder may take this fraction of it: one part in ten."""
NOT_COUNTED = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})
"""Errors of a folder that cannot be counted; it then counts as exceeding its limit."""
DEEPEST = 1000
"""Levels of folders up to which closed folders are opened."""
DEEPEST_RECORD = 8
"""Levels of folders below which no file is kept: a program may have created any number of them."""
SHOWN = 400
"""Characters of a path in a message."""
LARGEST_RECORD = 2**20
"""Size limit of a record; a larger file at its path is not one."""


@dataclass(frozen=True)
class Limit:
    """The limits of a folder."""

    size: int
    """Bytes on disk: holes of a file take none."""
    entries: int
    """Files and folders."""


def is_low(folder: Path) -> bool:
    """Return whether under half of the space that artifacts leave to metrics and logs is free."""
    try:
        free, reserved = reserve(folder)
    except OSError:
        return False
    return free < reserved // 2


def excess(folder: Path, limit: Limit, *, user: int | None = None) -> str | None:
    """Return how a folder exceeds a limit, in words; None if it does not.

    The count stops at the limit and follows no link. A folder that its owner has closed is opened.
    A folder that still cannot be counted, or is nested too deep, exceeds every limit: it may hold
    anything.

    Args:
        folder: the folder; a missing one holds nothing.
        limit: its limit.
        user: owner of private folders in it, which are read with that user's rights.
    """
    count = _Count(folder, limit)
    while count.folders and count.excess is None:
        path = count.folders.pop()
        try:
            try:
                count.add(path)
            except PermissionError:
                with rights_of(user):
                    _open(path)
                    count.add(path)
        except OSError as error:
            if error.errno in NOT_COUNTED:
                return f"{path[:SHOWN]} cannot be counted: {os.strerror(error.errno or 0)}"
            # Otherwise it may just have been removed.
    return count.excess


def remove_all_but(
    folder: Path, kept: Container[Path], records: Container[Path], *, user: int | None = None
) -> None:
    """Remove the files of a folder in which no process writes any more, without following links.

    Args:
        folder: the folder.
        kept: files that stay.
        records: files that stay unless they are larger than a record.
        user: removes the files with this user's rights, which cover no file of the worker.
    """
    left, deep = [(str(folder), 0)], []
    with rights_of(user):
        while left:
            place, depth = left.pop()
            if depth == DEEPEST_RECORD:
                deep.append(place)
                continue
            with suppress(OSError), os.scandir(place) as entries:
                for entry in list(entries):
                    if entry.is_dir(follow_symlinks=False):
                        with suppress(OSError):  # its owner may have removed the permission
                            os.chmod(entry.path, 0o700)  # noqa: PTH101 - as of `_open`
                        left.append((entry.path, depth + 1))
                    else:
                        _remove_file(Path(entry.path), kept, records)
    for place in deep:
        remove_tree(Path(place))


def _remove_file(path: Path, kept: Container[Path], records: Container[Path]) -> None:
    with suppress(OSError):
        small = path.lstat().st_size <= LARGEST_RECORD
        if path not in kept and not (small and path in records):
            path.unlink()


def remove_tree(folder: Path) -> bool:
    """Remove a folder and its content, without following a link or leaving the file system.

    Returns:
        Whether it is gone.

    Folders of other users, and folders without permission, are made writable for this process if
    it may do so.
    """
    # A program may nest folders deeper than Python's functions can handle.
    words = ["rm", "-rf", "--one-file-system", "--", str(folder)]
    for is_last in (False, True):
        ended = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True)
        if not ended.returncode:
            return True
        if not is_last:
            with suppress(FileNotFoundError):
                _open_all(folder)
    reason = ended.stderr.decode(errors="replace")[:500]
    logger.warning("%s is not removed whole: %s", folder, reason)
    return False


def _open_all(top: Path) -> None:
    """Make folders writable for this process, in one file system and through no link.

    A process of a later attempt may have this attempt's user id, and put links in their place
    meanwhile: each folder is opened from its parent, and changed by its descriptor.
    """
    device = top.lstat().st_dev
    left: list[tuple[str, ...]] = [()]
    while left:
        parts = left.pop()
        with suppress(OSError), _opened(top, parts) as fd:
            found = os.fstat(fd)
            if found.st_dev != device:
                continue
            here = f"/proc/self/fd/{fd}"  # an O_PATH descriptor can only be changed this way
            if found.st_uid != os.geteuid():
                os.chown(here, os.geteuid(), -1)
            if found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(here, stat.S_IRWXU)  # noqa: PTH101 - a descriptor
            if len(parts) < DEEPEST:
                with os.scandir(here) as entries:
                    left += (
                        (*parts, each.name)
                        for each in entries
                        if each.is_dir(follow_symlinks=False)
                    )


@contextmanager
def _opened(top: Path, parts: Sequence[str]) -> Iterator[int]:
    """Open a folder below another one; neither it nor its ancestors may be links.

    Raises:
        OSError: there is no such folder.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(top, flags)
    try:
        for part in parts:
            inner = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _open(path: str) -> None:
    """Give the owner of a folder permission to list it."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & 0o500 != 0o500:
        os.chmod(path, mode | 0o500)  # noqa: PTH101 - the paths of a count are no `Path`


@contextmanager
def rights_of(user: int | None) -> Iterator[None]:
    """Let this thread use files with a user's rights; for signals and the rest it keeps its own.

    If the worker may not change users, it keeps its own rights.
    """
    libc = ctypes.CDLL(None)
    own = os.geteuid(), os.getegid()
    # By definition these calls affect only the calling thread (setfsuid(2)).
    ids = own if user is None else (user, user)
    libc.setfsgid(ids[1])
    libc.setfsuid(ids[0])
    try:
        yield
    finally:
        libc.setfsuid(own[0])
        libc.setfsgid(own[1])


class _Count:
    """Bytes and entries of a folder counted so far, and the folders still to list."""

    def __init__(self, folder: Path, limit: Limit) -> None:
        self.folders = [str(folder)]
        self.excess: str | None = None
        self._folder, self._limit = folder, limit
        self._size = self._entries = 0

    def add(self, path: str) -> None:
        """Count the entries of one folder, up to the limit.

        Raises:
            OSError: it cannot be listed, or its entries cannot be read.
        """
        with os.scandir(path) as listed:
            for entry in listed:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # it may just have been removed
                    continue
                self._size += status.st_blocks * BLOCK
                self._entries += 1
                if entry.is_dir(follow_symlinks=False):
                    self.folders.append(entry.path)
                if self._size > self._limit.size:
                    self.excess = (
                        f"{self._folder} takes more than {self._limit.size:,} bytes of disk"
                    )
                    return
                if self._entries > self._limit.entries:
                    self.excess = (
                        f"{self._folder} holds more than {self._limit.entries:,} files and folders"
                    )
                    return


class FolderWatch:
    """Scans a folder from time to time, in a thread, until it exceeds its limit."""

    def __init__(
        self,
        folder: Path,
        limit: Limit,
        *,
        user: int | None = None,
        seconds: float = POLL_SECONDS,
    ) -> None:
        """Describe the watch; nothing starts.

        Args:
            folder: the folder.
            limit: its limit; while its disk is nearly full, at most a part of the disk.
            user: as in `excess`.
            seconds: shortest pause between two scans.
        """
        self._folder, self._user = folder, user
        self._limit, self._seconds = limit, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="folder-watch", daemon=True)
        self.excess: str | None = None
        """How the folder exceeds its limit, once it does."""

    @property
    def is_alive(self) -> bool:
        """Whether it is still scanning."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start scanning."""
        self._thread.start()

    def stop(self) -> None:
        """Stop scanning; a scan under way ends by itself."""
        self._over.set()

    def make_room(self, kept: Container[Path], records: Container[Path]) -> None:
        """Remove a folder's excess content from a disk that is nearly full.

        Other attempts of the node write to the same disk.

        Args:
            kept: as in `remove_all_but`.
            records: as in `remove_all_but`.
        """
        if self.excess is not None and is_low(self._folder):
            remove_all_but(self._folder, kept, records, user=self._user)
            logger.warning("removed what the program had written to %s", self._folder)

    def _work(self) -> None:
        pause = self._seconds
        while not self._over.wait(pause):
            began = time.monotonic()
            self.excess = self._look()
            if self.excess is not None:
                logger.warning("%s", self.excess)
                return
            pause = max(self._seconds, PAUSE_FACTOR * (time.monotonic() - began))

    def _look(self) -> str | None:
        limit, low = self._limit, is_low(self._folder)
        if low:
            disk = os.statvfs(self._folder)
            part = disk.f_blocks * disk.f_frsize // SCARCE_SHARE
            limit = replace(limit, size=min(limit.size, part))
        found = excess(self._folder, limit, user=self._user)
        return f"{found}, and the disk is about to be full" if found and low else found


def evict(folder: Path, *, but: Path, suffix: str, most: int) -> None:
    """Remove the least recently used files, until the others fit a limit.

    Args:
        folder: all files in it count.
        but: a file that stays.
        suffix: end of the names of removable files; other files are still being written.
        most: limit in bytes.
    """
    found = []
    for path in folder.iterdir():
        try:
            found.append((path.stat().st_mtime, path.stat().st_size, path))
        except FileNotFoundError:  # another process has removed it
            continue
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            return
        if path != but and path.suffix == suffix:
            path.unlink(missing_ok=True)
            total -= size
