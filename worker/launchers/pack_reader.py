"""Unpacks a pack in a separate process, with limits on paths, links and size.

`python -m worker.launchers.pack_reader SECONDS ARCHIVE FOLDER [GROUP]` prints why it failed.
"""

from __future__ import annotations

import errno
import gzip
import os
import resource
import shutil
import sys
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from trainyard.spec.code_pack import MAX_ENTRIES, MAX_UNPACKED_BYTES, stays_inside

# Each launch of a pack imports this module, so for speed it imports only the standard library.

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
DONE, REFUSED, NO_SPACE = 0, 3, 4
"""Exit statuses; after a failure, the process has printed the reason."""
MEMORY_BYTES = 2**30
"""Memory limit of the process, in bytes."""
HEADER_BYTES = 2**20
"""Maximum number of bytes between two members' contents, for names and pax attributes."""


class _Bounded:
    """Reads a stream up to a limit, so that a small archive cannot expand without bound.

    Headers have their own limit, because `tarfile` holds each header in memory.
    """

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source, self._left = source, MAX_UNPACKED_BYTES
        self._before_next = HEADER_BYTES

    def enter(self, member: tarfile.TarInfo) -> None:
        """Allow the stream to read the content of a member and the next header.

        Raises:
            ValueError: the member is a sparse file, whose holes take disk space but no bytes of the
                archive.
        """
        if member.issparse():
            raise ValueError(f"{member.name!r} is a sparse file; legal: files with all their bytes")
        self._before_next = member.size + HEADER_BYTES

    def read(self, size: int) -> bytes:
        content = self._source.read(min(size, self._left + 1, self._before_next + 1))
        self._left -= len(content)
        self._before_next -= len(content)
        if self._left < 0:
            raise ValueError(f"it holds more than {MAX_UNPACKED_BYTES:,} bytes")
        if self._before_next < 0:
            raise ValueError(f"a header is longer than {HEADER_BYTES:,} bytes")
        return content


def read_pack(archive: Path, folder: Path, *, group: int | None) -> None:
    """Write the files of a pack to an empty folder.

    Only regular files, folders, and relative links to targets inside the folder are legal. Links
    are created last, so that no file is written through a link.

    Args:
        archive: a gzipped tar archive.
        folder: an empty folder that no rank can enter yet.
        group: group that may read the files and create further files in the folders; None for no
            group.

    Raises:
        OSError: a file or folder cannot be written, or the archive is not gzipped.
        TarError, EOFError, zlib.error: the archive is damaged.
        ValueError: the archive holds an illegal entry or exceeds a limit.
    """
    with gzip.open(archive, "rb") as source:
        bounded = _Bounded(source)
        with tarfile.open(fileobj=bounded, mode="r|") as tar:  # type: ignore[call-overload]
            _write(tar, bounded, folder=folder, group=group)


def _write(tar: tarfile.TarFile, source: _Bounded, *, folder: Path, group: int | None) -> None:
    links: list[tuple[Path, str]] = []
    made = {folder}
    for count, member in enumerate(tar, 1):
        if count > MAX_ENTRIES:
            raise ValueError(f"it holds more than {MAX_ENTRIES:,} files, folders and links")
        source.enter(member)
        path = _place(member.name, folder)
        _make_folders(path if member.isdir() else path.parent, folder, made=made, group=group)
        if len(made) > MAX_ENTRIES:
            raise ValueError(f"it holds more than {MAX_ENTRIES:,} folders")
        if member.issym():
            if not stays_inside(member.name, member.linkname):
                raise ValueError(
                    f"{member.name!r} is a link to {member.linkname!r}, which is not inside the "
                    "folder"
                )
            links.append((path, member.linkname))
        elif member.isreg():
            _write_file(tar, member, path=path, group=group)
        elif not member.isdir():
            raise ValueError(f"{member.name!r} is neither a file, a folder nor a symbolic link")
    for path, target in links:
        path.symlink_to(target)


def _place(name: str, folder: Path) -> Path:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise ValueError(f"{name!r} is no path inside the folder")
    return folder / relative


def _make_folders(path: Path, folder: Path, *, made: set[Path], group: int | None) -> None:
    missing = [one for one in (path, *path.parents) if one.is_relative_to(folder)]
    for one in reversed(missing):
        if one not in made:
            one.mkdir(mode=0o755)
            made.add(one)
            if group is not None:
                _give(one, group, 0o1770)


def _write_file(
    tar: tarfile.TarFile, member: tarfile.TarInfo, *, path: Path, group: int | None
) -> None:
    source = tar.extractfile(member)
    assert source is not None, "a regular file has content"
    executable = member.mode & 0o100
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with source, os.fdopen(fd, "wb") as file:
        shutil.copyfileobj(source, file)
    if group is not None:
        _give(path, group, 0o750 if executable else 0o640)
    else:
        path.chmod(0o755 if executable else 0o644)


def _give(path: Path, group: int, mode: int) -> None:
    os.chown(path, -1, group, follow_symlinks=False)
    path.chmod(mode)


def main() -> int:
    """Unpack within the process' limits; print why it fails; return the exit status."""
    seconds, archive, folder, *group = sys.argv[1:]
    # Unlike a kill by the system, this limit shows itself by SIGXCPU.
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 10))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        read_pack(Path(archive), Path(folder), group=int(group[0]) if group else None)
    except OSError as error:
        named = f"{error.strerror}: {Path(error.filename).name}" if error.filename else str(error)
        sys.stdout.write(named if error.errno not in FULL else str(error.strerror))
        return NO_SPACE if error.errno in FULL else REFUSED
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        sys.stdout.write(str(error))
        return REFUSED
    except (RecursionError, MemoryError) as error:  # `tarfile` raises these for malicious headers
        sys.stdout.write(f"its headers cannot be read: {type(error).__name__}")
        return REFUSED
    return DONE


if __name__ == "__main__":
    sys.exit(main())
