"""Whether the disk of a run directory is about to be full."""

from __future__ import annotations

from pathlib import Path

from trainyard.run.artifacts.artifact_writer import reserve


def is_low(folder: Path) -> bool:
    """Return whether less than half of what artifacts leave to metrics and logs is free."""
    try:
        free, reserved = reserve(folder)
    except OSError:
        return False
    return free < reserved // 2
