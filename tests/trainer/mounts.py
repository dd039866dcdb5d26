"""Storage of a fixed size, for tests that fill it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@contextmanager
def mounted(place: Path) -> Iterator[None]:
    """Mount a file system of 32 MiB at a folder while the block runs."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
