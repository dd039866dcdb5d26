"""Libraries that are loaded into all programs of a machine: clocks are set, the storage refuses."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBFAKETIME = Path("/usr/lib") / sysconfig.get_config_var("MULTIARCH") / "faketime/libfaketime.so.1"
STORAGE_ERRORS = Path(__file__).with_name("storage_errors.c")


def missing_for_preloads() -> str | None:
    """Return what this machine lacks."""
    if not LIBFAKETIME.exists():
        return f"{LIBFAKETIME} (package libfaketime)"
    return None if shutil.which("gcc") else "gcc"


@dataclass(frozen=True)
class Preloads:
    """The libraries of a cluster, and the files that steer them."""

    root: Path
    """Folder of these files."""
    storage: Path
    """Folder that can refuse new files."""

    def build(self) -> None:
        """Compile what has to be."""
        library = str(self._storage_errors)
        build = ("gcc", "-shared", "-fPIC", "-O1", "-o", library, str(STORAGE_ERRORS), "-ldl")
        subprocess.run(build, check=True)

    def environment(self, machine: str) -> dict[str, str]:
        """Return the variables of the programs of a machine."""
        self._clock(machine).write_text("+0\n")
        return {
            "LD_PRELOAD": f"{self._storage_errors} {LIBFAKETIME}",
            "CHAOS_STORAGE": str(self.storage),
            "CHAOS_ERRNO": str(self._errno),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock(machine)),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    @contextlib.contextmanager
    def clock_moved(self, machine: str, seconds: int) -> Iterator[None]:
        """Set the clock of a machine forward or back while the block runs."""
        self._clock(machine).write_text(f"{seconds:+d}\n")
        try:
            yield
        finally:
            self._clock(machine).write_text("+0\n")

    @contextlib.contextmanager
    def storage_error(self, number: int) -> Iterator[None]:
        """Let the storage refuse new files with an errno while the block runs."""
        self._errno.write_text(str(number))
        try:
            yield
        finally:
            self._errno.unlink()

    @property
    def _storage_errors(self) -> Path:
        return self.root / "storage_errors.so"

    @property
    def _errno(self) -> Path:
        return self.root / "errno"

    def _clock(self, machine: str) -> Path:
        return self.root / f"{machine}.clock"
