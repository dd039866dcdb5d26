"""Python's garbage collector, at rest while steps run and while checkpoints are loaded.

A collection walks every object: at a moment of its own on each rank, while the others wait in the
next collective. Here it runs after the same steps on all ranks, and leaves alone what was there
before the first one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS_BETWEEN = 50
"""Cycles that hold tensors are rare, and hold their memory for that long at most."""


@contextmanager
def resting() -> Iterator[None]:
    """Keep the collector from walking every object of torch while many small ones are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def collecting_between_steps() -> Iterator[Callable[[int], None]]:
    """Give a function that is called with each completed step, and collects when it is due."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()

    def step_done(step: int) -> None:
        if step % STEPS_BETWEEN == 0:
            gc.collect()

    try:
        yield step_done
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
