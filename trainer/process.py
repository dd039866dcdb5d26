"""A rank's process: quick imports, an end with torchrun, and Python's garbage collector at rest.

A collection walks every object: at a moment of its own on each rank, while the others wait in the
next collective. Here it runs after the same steps on all ranks, and leaves alone what was there
before the first one.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from trainyard.run.control_files import order_stop
from trainyard.run.directory import STACKS_SIGNAL, RunDirectory

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel end this process when its parent is gone: nothing trains unwatched.

    Call it first of all: a parent that went before cannot be told from one that never was.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went between the two calls
        os._exit(1)


def show_stacks_when_asked() -> None:
    """Write the stacks of all threads to stderr on `STACKS_SIGNAL`, also where Python is stuck."""
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr, all_threads=True)


def stop_on_sigterm(directory: RunDirectory) -> None:
    """Have SIGTERM make the `stop` file, so that the run saves and leaves.

    torchrun forwards it to all ranks when it gets one itself, as from a scheduler or a console.
    Under a supervisor nothing is installed: it makes `stop` itself, and a rank that outlives
    SIGTERM would keep torchrun waiting after the failure of another one. Without a supervisor
    torchrun sends SIGTERM then too: where a failure is on record, it ends this process.
    """
    if Path(directory.secret).exists():
        return

    def stop(_number: int, _frame: object) -> None:
        if Path(directory.error).exists():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):  # a full disk: the next SIGTERM tries again
            order_stop(directory)

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def collector_resting() -> Iterator[None]:
    """Import without the garbage collector, which then leaves alone what was imported.

    It would walk torch's modules again and again while they come: a fifth of their import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def prefer_growing_segments(environment: MutableMapping[str, str]) -> None:
    """Have torch's allocator on CUDA grow its segments, unless the environment sets it up already.

    Segments that cannot grow are cut up by blocks of changing size, and memory that is free is in
    pieces. torch reads the setting when it is imported.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in environment:  # its former name
        environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def leave(code: int) -> NoReturn:
    """End this process at once, after its output is written.

    When a run has failed, peers may be gone and collectives pending: the threads of the
    communication libraries must keep neither this process nor the other ranks waiting.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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
