"""What lasts while a block runs: processes that are stopped, disks that are full."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

PIECE = b"x" * 65_536


@contextlib.contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Stop processes while the block runs."""
    for pid in pids:
        send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            send(pid, signal.SIGCONT)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


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
