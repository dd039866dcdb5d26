"""A folder and an interpreter for other users."""

from __future__ import annotations

from tests.worker.node.conftest import made_open_folder, python

__all__ = ["made_open_folder", "python"]
