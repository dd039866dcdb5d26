"""Disks that are full."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

PIECE = b"x" * 65_536


@contextlib.contextmanager
def full(place: Path) -> Iterator[None]:
    """Fill the disk of a folder while the block runs."""
    filler = place / "filler"
    try:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(PIECE)
        yield
    finally:
        filler.unlink()
