"""An NVML without GPUs, compiled for the tests, and its values."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIBIBYTE = 1 << 30


def gpu(index: int, **values: object) -> dict[str, object]:
    """Return the lines of one GPU."""
    given = {"uuid": f"GPU-{index}", "name": "H100", "memory": 80 * GIBIBYTE, **values}
    return {f"{index}.{key}": value for key, value in given.items()}


@dataclass(frozen=True)
class FakeNvml:
    """The library, for processes that a test starts."""

    library: Path
    """Folder of the compiled library."""
    values: Path
    """File of its values, which each call reads."""

    def giving(self, lines: Mapping[str, object]) -> dict[str, str]:
        """Write the values, and return the variables with which a process loads the library.

        The loader reads the folder when a process starts.
        """
        self.values.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        return {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML": str(self.values)}


def compile_library(folder: Path) -> Path:
    """Compile the library into a folder, and return the folder."""
    target, source = folder / "libnvidia-ml.so.1", Path(__file__).with_suffix(".c")
    words = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(target), str(source)]
    subprocess.run(words, check=True)
    return folder
