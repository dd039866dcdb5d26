"""A library in all programs of a machine: the clock is set, the storage refuses."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")


@dataclass(frozen=True)
class Preload:
    """The library of a cluster, and the files that steer it."""

    root: Path
    """Folder of these files."""
    storage: Path
    """Folder that can refuse new files."""

    def build(self) -> None:
        """Compile the library."""
        compiler = ("gcc", "-shared", "-fPIC", "-O1")
        command = (*compiler, "-o", str(self._library), str(SOURCE), "-ldl")
        subprocess.run(command, check=True)

    def environment(self, machine: str) -> dict[str, str]:
        """Return the variables of the programs of a machine."""
        return {
            "LD_PRELOAD": str(self._library),
            "CHAOS_CLOCK": str(self._clock(machine)),
            "CHAOS_STORAGE": str(self.storage),
            "CHAOS_ERRNO": str(self._errno),
        }

    @contextlib.contextmanager
    def clock_moved(self, machine: str, seconds: int) -> Iterator[None]:
        """Set the clock of a machine forward or back while the block runs."""
        self._clock(machine).write_text(str(seconds))
        try:
            yield
        finally:
            self._clock(machine).unlink()

    @contextlib.contextmanager
    def storage_error(self, number: int) -> Iterator[None]:
        """Let the storage refuse new files with an errno while the block runs."""
        self._errno.write_text(str(number))
        try:
            yield
        finally:
            self._errno.unlink()

    @property
    def _library(self) -> Path:
        return self.root / "faults.so"

    @property
    def _errno(self) -> Path:
        return self.root / "errno"

    def _clock(self, machine: str) -> Path:
        return self.root / f"{machine}.clock"
