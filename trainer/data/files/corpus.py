"""The files of an input: found in a fixed order, kept beneath their root, opened with care."""

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


@dataclass(frozen=True)
class InputFile:
    """One file of an input, as it was found."""

    name: str
    """Path below the input, as it was walked."""
    path: Path
    """The file itself: absolute, every symbolic link followed."""
    stamp: tuple[int, int, int]
    """Size in bytes, modification time and change time in nanoseconds."""

    @property
    def size(self) -> int:
        """Bytes of the file when it was found."""
        return self.stamp[0]

    @property
    def identity(self) -> bytes:
        """Bytes that change when the file is another one, or was written to."""
        return json.dumps([self.name, *self.stamp]).encode() + b"\n"


@dataclass(frozen=True)
class Corpus:
    """The files of one input.

    Files that are empty, and those whose name `wanted` refuses, are left out. The order is that of
    the names' bytes, folder by folder, so it is the same on every machine.
    """

    field: str
    """The spec's words for the input, for messages: `data.path='data:books'`."""
    root: Path
    """Real path of the folder beneath which every file must lie."""
    top: Path
    """Real path of the file or folder that is the input."""
    wanted: Callable[[Path], bool]
    """Whether a file or folder takes part, by its path."""
    name: str = ""
    """What the input is called, should it be a single file: its real path may say otherwise."""
    names: frozenset[str] | None = None
    """The names of the only files that take part; None: all that are wanted."""

    def files(self) -> Iterator[InputFile]:
        """Yield the files in order; nothing but their names and stamps is read.

        Raises:
            DataError: an entry cannot be read, leads out of the root, loops, or is a device.
        """
        name = Path(self.name) if self.top.is_file() else Path()
        for file in self._found(self.top, name, ()):
            if self.names is None or file.name in self.names:
                yield file

    @contextmanager
    def open(self, file: InputFile) -> Iterator[io.FileIO]:
        """Open a file to read it in a `with`.

        Raises:
            DataError: it cannot be read, now leads out of the root, or was changed since it was
                found, before or while it was read.
        """
        try:
            # A pipe that took the file's place must not block: O_NONBLOCK.
            fd = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with io.FileIO(fd, "rb") as opened:
                there = Path(f"/proc/self/fd/{fd}").readlink()
                if not there.is_relative_to(self.root):
                    self.refuse(file.path, f"now leads to {shown(there)}")
                self._refuse_changed(file, fd)
                yield opened
                self._refuse_changed(file, fd)
        except OSError as error:
            self.refuse(file.path, f"cannot be read: {error.strerror or error}")

    def refuse(self, path: Path, what: str) -> NoReturn:
        """Refuse the input because of one of its files.

        Raises:
            DataError: always; it names the spec's field and the file.
        """
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
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop, before Python 3.13
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
