"""Calls back at the points of a rank's saves, from the log that names them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint import save_folder
from trainer.checkpoint.save_folder import Point

Action = Callable[[Point, Any], None]
"""Called with the path on storage, in the rank and thread that reached the point."""


class _Listener(logging.Handler):
    def __init__(self, action: Action) -> None:
        super().__init__()
        self._action = action

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple)
        point, path = record.args
        assert isinstance(point, Point)
        self._action(point, path)


@contextmanager
def at_points(action: Action) -> Iterator[None]:
    """Call `action` at each point that a save of this process passes."""
    listener = _Listener(action)
    save_folder.logger.addHandler(listener)
    save_folder.logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        save_folder.logger.removeHandler(listener)
        save_folder.logger.setLevel(logging.NOTSET)


@dataclass(frozen=True)
class Moment:
    """One moment of the first save of a process."""

    point: Point
    """The point to reach."""
    name: str = ""
    """Name of the point's file; any if empty."""
    nth: int = 1
    """Which occurrence of the point in the save."""


@contextmanager
def dying_at(moment: Moment, *, witness: Path) -> Iterator[None]:
    """Kill this process like `kill -9` when its first save reaches a moment.

    Args:
        moment: when.
        witness: a file created right before, which distinguishes this death from others.
    """
    begun, met = False, 0

    def die(point: Point, path: Path) -> None:
        nonlocal begun, met
        begun = begun or point is Point.BEGUN  # the fence is raised before anything is saved
        if begun and point is moment.point and moment.name in ("", path.name):
            met += 1
            if met == moment.nth:
                witness.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    with at_points(die):
        yield
