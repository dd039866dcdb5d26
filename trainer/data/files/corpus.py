"""The files of an input: listed in a fixed order, confined to their root, checked when opened."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainer.data.files.places import cause, shown
from trainer.errors import DataError
from trainyard.outside.git_lfs import LONGEST_POINTER, SHORTEST_POINTER, pointer_problem


@dataclass(frozen=True)
class InputFile:
    """One file of an input, as listed."""

    name: str
    """Path relative to the input, without following links."""
    path: Path
    """Absolute path, with all symbolic links followed."""
    stamp: tuple[int, int, int]
    """Size in bytes, modification time and change time in nanoseconds."""

    @property
    def size(self) -> int:
        """Size of the file when it was listed, in bytes."""
        return self.stamp[0]

    @property
    def identity(self) -> bytes:
        """Bytes that change when the file is replaced or modified."""
        return json.dumps([self.name, *self.stamp]).encode() + b"\n"


def has_ending(name: str, endings: str | tuple[str, ...]) -> bool:
    """Return whether a name ends with one of the lower-case `endings`, ignoring the name's case."""
    return name.lower().endswith(endings)


@dataclass(frozen=True)
class Corpus:
    """The files of one input.

    Empty files, and files that `wanted` rejects, are omitted. Each folder is sorted by the bytes of
    its names, so the order is equal on every machine.
    """

    field: str
    """Field and value in the spec, for messages: `data.path='data:books'`."""
    root: Path
    """Real path of the folder below which every file must lie."""
    top: Path
    """Real path of the file or folder that is the input."""
    wanted: Callable[[Path], bool]
    """Returns whether to include the file or folder at a path."""
    name: str = ""
    """Name of a single-file input in the spec; a link may lead to a file with another name."""
    names: frozenset[str] | None = None
    """Names of the files to include; None includes all files that `wanted` accepts."""

    def files(self) -> Iterator[InputFile]:
        """Yield the files in order; read names and stamps, but no contents.

        Raises:
            DataError: an entry cannot be read, is neither a file nor a folder, links to a place
                outside of the root, or belongs to a cycle of links.
        """
        name = Path(self.name) if self.top.is_file() else Path()
        for file in self._found(self.top, name, ()):
            if self.names is None or file.name in self.names:
                yield file

    @contextmanager
    def open(self, file: InputFile) -> Iterator[io.FileIO]:
        """Open a file for reading, as a context manager.

        Raises:
            DataError: the file cannot be read, is now a link out of the root, or has changed since
                it was listed.
        """
        try:
            # O_NONBLOCK, because opening a pipe that has replaced the file would block.
            fd = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with io.FileIO(fd, "rb") as opened:
                # Check the path of the open file. Its name may refer to another file at any time.
                there = Path(f"/proc/self/fd/{fd}").readlink()
                if not there.is_relative_to(self.root):
                    self.refuse(file.path, f"now leads to {shown(there)}")
                self._refuse_changed(file, fd)
                yield opened
                self._refuse_changed(file, fd)
        except OSError as error:
            self.refuse(file.path, f"cannot be read: {error.strerror or error}")

    def refuse_pointer(self, file: InputFile) -> None:
        """Reject a Git LFS pointer; a file larger than any pointer is not read.

        Raises:
            DataError: the file is a pointer, or cannot be read.
        """
        if SHORTEST_POINTER <= file.size <= LONGEST_POINTER:
            with self.open(file) as opened:
                problem = pointer_problem(opened.read())
            if problem:
                self.refuse(file.path, problem)

    def refuse(self, path: Path, what: str) -> NoReturn:
        """Raise DataError for one file of the input, with the field in the spec and the path."""
        raise DataError(f"{self.field}: {shown(path)} {what}", path=shown(path)) from None

    def _refuse_changed(self, file: InputFile, fd: int) -> None:
        if _stamp(os.fstat(fd)) != file.stamp:
            self.refuse(
                file.path, "was written to while it was read; start again when it is complete"
            )

    def _found(self, entry: Path, name: Path, parents: tuple[Path, ...]) -> Iterator[InputFile]:
        path = self._beneath_root(entry) if entry.is_symlink() else entry
        try:
            status = path.stat()
        except OSError as error:
            self.refuse(entry, f"cannot be read: {error.strerror}")
        if stat.S_ISDIR(status.st_mode):
            if path in parents:
                self.refuse(entry, f"is a symbolic link to a folder around it, {shown(path)}")
            for child in self._children(path):
                yield from self._found(child, name / child.name, (*parents, path))
        elif not stat.S_ISREG(status.st_mode):
            self.refuse(entry, "is neither a file nor a folder")
        elif status.st_size:
            yield InputFile(name=os.fspath(name), path=path, stamp=_stamp(status))

    def _children(self, folder: Path) -> list[Path]:
        try:
            return sorted((p for p in folder.iterdir() if self.wanted(p)), key=os.fsencode)
        except OSError as error:
            self.refuse(folder, f"cannot be listed: {error.strerror}")

    def _beneath_root(self, link: Path) -> Path:
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: a link cycle (Python < 3.13)
            self.refuse(link, f"is a symbolic link that leads nowhere ({cause(error)})")
        if not target.is_relative_to(self.root):
            self.refuse(
                link,
                f"is a symbolic link to {shown(target)}, which is outside the root "
                f"{shown(self.root)}; legal are files beneath the root",
            )
        return target


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
