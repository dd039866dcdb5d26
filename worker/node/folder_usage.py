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
from worker.node.users import RankUser

logger = logging.getLogger(__name__)

BLOCK = 512
"""Unit of `st_blocks`, in bytes, on every file system."""
POLL_SECONDS = 5.0
"""Minimum pause between scans, in seconds."""
PAUSE_FACTOR = 20
"""Ratio of a pause's duration to the duration of the scan before it. So scans take at most 1/20 of
a core's time."""
SCARCE_SHARE = 10
"""Divisor of the disk's size; on a nearly full disk, a folder may take at most 1/10 of the size."""
NOT_COUNTED = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})
"""Errors that make a folder uncountable; such a folder counts as too large."""
DEEPEST = 1000
"""Maximum depth at which closed subfolders are opened."""
DEEPEST_RECORD = 8
"""Maximum depth at which files are kept; everything deeper is removed."""
SHOWN = 400
"""Maximum number of a path's characters that a message shows."""
LARGEST_RECORD = 2**20
"""Maximum size of a record in bytes; a larger file in its place is no record."""


@dataclass(frozen=True)
class Limit:
    """Limits on the content of a folder."""

    size: int
    """Maximum size on disk in bytes; holes of files count as 0."""
    entries: int
    """Maximum number of files and folders."""


def is_low(folder: Path) -> bool:
    """Return whether less than half of the disk space reserved for metrics and logs is free."""
    try:
        free, reserved = reserve(folder)
    except OSError:
        return False
    return free < reserved // 2


def excess(folder: Path, limit: Limit, *, user: RankUser | None = None) -> str | None:
    """Return a message if a folder exceeds a limit; otherwise None.

    The count stops at the limit and follows no link. If a folder's owner has removed access, this
    function restores the access. A folder that still cannot be counted, or is nested too deeply,
    may hold anything, and so exceeds every limit.

    Args:
        folder: the folder; a missing folder counts as empty.
        limit: limit on its content.
        user: owner of private subfolders, which are read with that user's rights.
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
            # Without an excess, the folder may have just been removed.
    return count.excess


def remove_all_but(
    folder: Path, kept: Container[Path], records: Container[Path], *, user: RankUser | None = None
) -> None:
    """Remove a folder's files without following links; all writers must have ended before.

    Args:
        folder: the folder.
        kept: files to keep.
        records: files to keep unless they are larger than a record.
        user: user whose rights the removal uses; these rights cover no file of the worker.
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
                        with suppress(OSError):  # the owner may have removed access
                            os.chmod(entry.path, 0o700)  # noqa: PTH101 - as of `_open`
                        left.append((entry.path, depth + 1))
                    else:
                        _remove_file(Path(entry.path), kept, records)
    for place in deep:
        _remove_below(folder, Path(place))


def _remove_below(top: Path, folder: Path) -> None:
    """Remove a folder below `top`, even if a process replaces folders on the way by links."""
    *parents, name = folder.relative_to(top).parts
    with suppress(OSError), _opened(top, parents) as fd:
        remove_tree(Path(f"/proc/{os.getpid()}/fd/{fd}", name))


def _remove_file(path: Path, kept: Container[Path], records: Container[Path]) -> None:
    with suppress(OSError):
        small = path.lstat().st_size <= LARGEST_RECORD
        if path not in kept and not (small and path in records):
            path.unlink()


def remove_tree(folder: Path) -> bool:
    """Remove a folder and its content, without following a link or leaving the file system.

    Returns:
        Whether the folder is removed.

    Folders that this process may not change are first made writable, if possible.
    """
    # `rm`, because a program may nest folders too deeply for Python's functions.
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
    """Make folders writable for this process, without leaving the file system or following a link.

    A process of a later attempt with the same user id may replace folders by links meanwhile. So
    each folder is opened from its parent, and changed by its descriptor.
    """
    device = top.lstat().st_dev
    left: list[tuple[str, ...]] = [()]
    while left:
        parts = left.pop()
        with suppress(OSError), _opened(top, parts) as fd:
            found = os.fstat(fd)
            if found.st_dev != device:
                continue
            here = f"/proc/self/fd/{fd}"  # the only way to change the mode of an O_PATH descriptor
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
    """Open a folder below `top`; neither `top` nor a folder from there on may be a link.

    Raises:
        OSError: the folder does not exist, or one of these folders is a link.
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
    """Give a folder's owner permission to list the folder."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & 0o500 != 0o500:
        os.chmod(path, mode | 0o500)  # noqa: PTH101 - the paths of a count are no `Path`


@contextmanager
def rights_of(user: RankUser | None) -> Iterator[None]:
    """Let this thread access files with a user's rights, but send signals with its own rights.

    If the worker may not change users, the thread keeps its own rights.
    """
    libc = ctypes.CDLL(None)
    own = os.geteuid(), os.getegid()
    # These calls affect only the calling thread (setfsuid(2)).
    ids = own if user is None else (user.uid, user.own)
    libc.setfsgid(ids[1])
    libc.setfsuid(ids[0])
    try:
        yield
    finally:
        libc.setfsuid(own[0])
        libc.setfsgid(own[1])


class _Count:
    """Bytes and entries counted so far, and the subfolders still to list."""

    def __init__(self, folder: Path, limit: Limit) -> None:
        self.folders = [str(folder)]
        self.excess: str | None = None
        self._folder, self._limit = folder, limit
        self._size = self._entries = 0

    def add(self, path: str) -> None:
        """Count the entries of one folder, up to the limit.

        Raises:
            OSError: the folder cannot be listed, or its entries cannot be read.
        """
        with os.scandir(path) as listed:
            for entry in listed:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # the folder may just have been removed
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
    """Scans a folder periodically in a thread, until the folder exceeds its limit."""

    def __init__(
        self,
        folder: Path,
        limit: Limit,
        *,
        user: RankUser | None = None,
        seconds: float = POLL_SECONDS,
    ) -> None:
        """Describe the watch; nothing starts.

        Args:
            folder: the folder.
            limit: limit on the folder; on a nearly full disk, a fraction of the disk's size if that
                is lower.
            user: as for `excess`.
            seconds: minimum pause between two scans.
        """
        self._folder, self._user = folder, user
        self._limit, self._seconds = limit, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="folder-watch", daemon=True)
        self.excess: str | None = None
        """Message about the exceeded limit; None within the limit."""

    @property
    def is_alive(self) -> bool:
        """Whether the thread still scans."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start scanning."""
        self._thread.start()

    def stop(self) -> None:
        """Stop scanning; a scan in progress completes."""
        self._over.set()

    def make_room(self, kept: Container[Path], records: Container[Path]) -> None:
        """Remove the folder's content if it exceeds its limit and the disk is nearly full.

        Other attempts of the node write to the same disk.

        Args:
            kept: as for `remove_all_but`.
            records: as for `remove_all_but`.
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
    """Remove the least recently used files until the remaining files fit a limit.

    Args:
        folder: the folder; `most` limits the size of all its files.
        but: a file to keep.
        suffix: suffix of removable files; files with another suffix are still being written.
        most: maximum size of all files, in bytes.
    """
    found = []
    for path in folder.iterdir():
        try:
            found.append((path.stat().st_mtime, path.stat().st_size, path))
        except FileNotFoundError:  # another process has removed the file
            continue
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            return
        if path != but and path.suffix == suffix:
            path.unlink(missing_ok=True)
            total -= size
