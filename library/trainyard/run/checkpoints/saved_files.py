"""List the files below a checkpoint's folder, make them durable, and compute checksums."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainyard.run.atomic import sync_folder
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, MANIFEST
from trainyard.run.checkpoints.program_manifest import (
    ALGORITHM,
    MAX_FILES,
    SavedFile,
    name_problem,
)

READ_SIZE = 4 * 2**20
"""Number of bytes per read, so large that the disk limits the speed, not Python."""


def sync_files(folder: Path) -> tuple[str, ...]:
    """Make every visible file below a folder durable, and return the paths.

    A rank always sees its own files, and perhaps files of other ranks. Syncing files of other ranks
    costs little. A file that disappears meanwhile is omitted, because the rank that wrote the file
    has renamed it.

    Raises:
        ValueError: the folder contains something other than regular files, an illegal name, or too
            many files.
        OSError: the storage reports an error.
    """
    names = []
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        if (problem := name_problem(name)) is not None:
            raise ValueError(problem)
        with suppress(FileNotFoundError):
            descriptor = open_plain(path)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            names.append(name)
        if len(names) > MAX_FILES:
            raise ValueError(
                f"{folder} holds more than {MAX_FILES:,} files; legal: up to {MAX_FILES:,}"
            )
    return tuple(sorted(names))


def sync_folders(folder: Path) -> None:
    """Make all names below a folder durable.

    Raises:
        OSError: the storage reports an error.
    """
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(FileNotFoundError):  # another rank has removed its folder
            sync_folder(Path(path))


def describe(folder: Path, names: Iterable[str]) -> Iterator[SavedFile]:
    """Yield path, size and checksum of each file; missing files are omitted.

    Raises:
        ValueError: a path is not a regular file.
        OSError: the storage reports an error.
    """
    for name in names:
        with suppress(FileNotFoundError):
            descriptor = open_plain(folder / name)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                hasher, size = hashlib.new(ALGORITHM), 0
                while chunk := file.read(READ_SIZE):
                    hasher.update(chunk)
                    size += len(chunk)
            yield SavedFile(path=name, size=size, checksum=hasher.hexdigest())


def shares(named: Mapping[int, Iterable[str]], ranks: int) -> list[list[str]]:
    """Divide files evenly over the ranks that see them; each file goes to exactly one rank.

    Args:
        named: paths that each rank sees, by rank.
        ranks: number of ranks.

    Returns:
        Paths for each rank, by rank.
    """
    seen: dict[str, list[int]] = {}
    for rank in sorted(named):
        for name in named[rank]:
            seen.setdefault(name, []).append(rank)
    given: list[list[str]] = [[] for _ in range(ranks)]
    # First assign the files that few ranks see; the other files then even out the shares.
    for name in sorted(seen, key=lambda each: (len(seen[each]), each)):
        given[min(seen[name], key=lambda rank: len(given[rank]))].append(name)
    return given


def open_plain(path: Path) -> int:
    """Open a regular file for reading; never follow a link or wait for a pipe.

    Raises:
        ValueError: the path is not a regular file.
        OSError: the file cannot be opened.
    """
    if path.is_symlink():
        raise ValueError(f"{path} is a symbolic link; legal: regular files in folders")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is no regular file; legal: regular files in folders")
    return descriptor


def _files(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder):
        linked: Sequence[str] = [name for name in folders if Path(path, name).is_symlink()]
        if linked:
            raise ValueError(
                f"{Path(path, linked[0])} is a symbolic link; legal: regular files in folders"
            )
        for name in files:
            if path != str(folder) or name not in (MANIFEST, COMMITTED):
                yield Path(path, name)
